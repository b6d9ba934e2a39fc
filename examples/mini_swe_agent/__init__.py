"""A coding agent from PyPI, as it is, on a repository of two files."""
