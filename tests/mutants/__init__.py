"""Mutation testing, at night: `make mutants`, or `python -m tests.mutants workflows/ledger.py`."""
