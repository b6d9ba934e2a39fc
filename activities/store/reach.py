"""Waiting for PostgreSQL at the start of a process, with an error that helps when it does not come."""

import time

from sqlalchemy.exc import OperationalError

from ...schemas.errors import Unreachable
from .engine import sync_engine

TIMEOUT_S = 60.0
PAUSE_S = 0.5


def require_reachable(url: str, timeout_s: float = TIMEOUT_S) -> None:
    """Returns as soon as the server answers a query. Raises `Unreachable` saying what was tried and for how long."""
    engine = sync_engine(url)
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            try:
                engine.connect().close()
                return
            except OperationalError as error:
                if time.monotonic() >= deadline:
                    raise Unreachable(
                        f"PostgreSQL at {engine.url.render_as_string()} did not answer within {timeout_s:.0f} s: "
                        f"{str(error.orig).strip()}. `psrl up` starts one; an own server is given by URL "
                        "as postgresql+psycopg://user:password@host:port/database"
                    ) from error
            time.sleep(PAUSE_S)
    finally:
        engine.dispose()
