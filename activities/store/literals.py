"""Statuses and kinds within SQL text, so that no query spells one by itself."""

from enum import StrEnum


def listed(*values: StrEnum) -> str:
    """As SQL literals: `'live'`, or `'live', 'trained'` for what stands in `IN (...)`."""
    return ", ".join(f"'{value.value}'" for value in values)
