"""Side effects, one folder per capability."""
