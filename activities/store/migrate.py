"""The schema of the store: brought up to date by `psrl up`, checked by every process that uses it.

Promises: an upgrade happens wholly or not at all, two at once do it once, and a process never works on a schema of
another release.
"""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from ...schemas.errors import StoreRevisionMismatch
from .connections import sync_store

UPGRADE_LOCK = 0x7073726C
"""Key of the PostgreSQL advisory lock held while upgrading: "psrl" in ASCII."""


def upgrade(url: str) -> None:
    """Bring the store at `url` to the newest revision; does nothing when it is there already."""
    store = sync_store(url)
    try:
        with store.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
            command.upgrade(_config(connection), "head")
    finally:
        store.dispose()


def downgrade(url: str, revision: str) -> None:
    """Take the store back to `revision` (`base` removes every table, and with them all data)."""
    store = sync_store(url)
    try:
        with store.begin() as connection:
            command.downgrade(_config(connection), revision)
    finally:
        store.dispose()


def require_current(url: str) -> None:
    """Raises `StoreRevisionMismatch` naming both revisions."""
    store = sync_store(url)
    try:
        with store.connect() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
            wanted = head()
    finally:
        store.dispose()
    if found != wanted:
        raise StoreRevisionMismatch(
            f"the store at {store.url.render_as_string()} is at revision {found or 'none (empty)'}, this release "
            f"needs {wanted}: `psrl up` upgrades it, or use the release that matches the store"
        )


def head() -> str:
    """The revision this release works with."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def _config(connection: Connection | None = None) -> Config:
    """Points alembic at the migrations of the installed package, wherever that is."""
    config = Config()
    config.set_main_option("script_location", str(files("psrl.migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
