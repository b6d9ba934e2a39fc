"""Prompts: read, checked, ordered and drawn; and the admission of a run."""
