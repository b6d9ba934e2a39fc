"""The coordinator: one process with the live view of the fleet. Soft state, rebuilt from reports."""
