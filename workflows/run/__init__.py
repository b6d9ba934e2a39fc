"""The run: its state, its dispatch, what people see of it."""
