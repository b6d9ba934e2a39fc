"""Contracts between the parts: configuration, ids, messages, tables, errors. Imports nothing of ours."""
