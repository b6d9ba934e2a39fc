"""What people should know of their data although nothing failed: one line for all things of a kind."""

from ...schemas.text import storable

MAX_NOTES = 20
MAX_NOTE = 400
"""Characters. Notes are part of a run's state, which travels."""


class Notes:
    """Collects them while the files are read."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._count: dict[str, int] = {}

    def add(self, what: str, where: str) -> None:
        self._first.setdefault(what, where)
        self._count[what] = self._count.get(what, 0) + 1

    def lines(self) -> tuple[str, ...]:
        """In the order in which they were first met."""
        told = [storable(self._line(what), MAX_NOTE) for what in self._first]
        if len(told) > MAX_NOTES:
            told[MAX_NOTES - 1 :] = [f"and {len(told) - MAX_NOTES + 1} notes more"]
        return tuple(told)

    def _line(self, what: str) -> str:
        times = self._count[what]
        return f"{what} ({f'{times} times, first: ' if times > 1 else ''}{self._first[what]})"
