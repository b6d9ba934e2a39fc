"""One training step, and calls of the trainer."""
