"""Alembic's entry point: run by alembic, not imported by us.

The caller gives either a connection (`config.attributes["connection"]`, what `psrl.activities.store.migrate` does) or
a URL in `PSRL_POSTGRES_URL` (the `alembic` command line). Revisions of one upgrade share one transaction: a failed
upgrade leaves the store as it was.
"""

import os

from alembic import context
from sqlalchemy import Connection, create_engine

from psrl.schemas.tables import Base

URL_VARIABLE = "PSRL_POSTGRES_URL"


def run_on(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata, compare_server_default=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run_on(given)
elif url := os.environ.get(URL_VARIABLE):
    engine = create_engine(url)
    with engine.begin() as own:
        run_on(own)
    engine.dispose()
else:
    raise SystemExit(f"set {URL_VARIABLE} to the store's SQLAlchemy URL, e.g. postgresql+psycopg://psrl@127.0.0.1/psrl")
