"""Runnable examples. Run them, and name their functions in a run's configuration, from the repository root."""
