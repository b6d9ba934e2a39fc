"""A small pretrained chat model on a procedural reasoning-gym task, scored by that library's own scorer."""
