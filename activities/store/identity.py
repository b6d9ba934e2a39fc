"""Whose database answers at our address (L14): every new connection asks, for the price of one query."""

from typing import Any

from psycopg import OperationalError
from psycopg.errors import UndefinedTable
from sqlalchemy import Engine, event

QUERY = "SELECT id FROM store_identity"


class AnotherStore(OperationalError):
    """The database is another stack's. A failure to connect like any other: who repeats those waits for ours."""

    def __init__(self, found: str = "", expected: str = "") -> None:
        super().__init__(f"its database is {found}, ours is {expected}")
        self.found = found
        self.expected = expected


def only_ours(store: Engine, expected: str) -> None:
    """From now on it connects to the database of this id only; an empty id admits any."""
    if not expected:
        return

    @event.listens_for(store, "connect")
    def identify(connection: Any, record: object) -> None:
        found = store_id(connection) or "empty"
        if found != expected:
            raise AnotherStore(found, expected)


def store_id(connection: Any) -> str:
    """On a connection of the driver's. Empty when the database has no tables of ours yet."""
    cursor = connection.cursor()
    try:
        cursor.execute(QUERY)
        row = cursor.fetchone()
    except UndefinedTable:
        row = None
    finally:
        cursor.close()
    connection.rollback()
    return str(row[0]) if row else ""
