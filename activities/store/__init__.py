"""Access to the trajectory store."""
