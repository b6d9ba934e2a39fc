"""The `psrl` command."""
