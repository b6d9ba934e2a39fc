"""A reward module that fails on import."""

RATE = 1 / 0
