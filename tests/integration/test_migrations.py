"""The migrations make exactly the tables that the code believes in."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect

from psrl.activities.store.engine import sync_engine
from psrl.activities.store.migrate import downgrade, require_current, upgrade
from psrl.schemas.errors import StoreRevisionMismatch
from psrl.schemas.tables import Base
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.integration


def tables(url: str) -> set[str]:
    engine = sync_engine(url)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_migrated_schema_equals_the_table_definitions(postgres_url: str) -> None:
    engine = sync_engine(postgres_url)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_server_default": True})
            assert compare_metadata(context, Base.metadata) == []
    finally:
        engine.dispose()
    assert tables(postgres_url) == {*Base.metadata.tables, "alembic_version"}


def test_downgrade_to_base_removes_every_table_and_upgrade_brings_them_back(postgres_url: str) -> None:
    downgrade(postgres_url, "base")
    assert tables(postgres_url) == {"alembic_version"}
    upgrade(postgres_url)
    assert tables(postgres_url) == {*Base.metadata.tables, "alembic_version"}


def test_upgrading_a_current_store_changes_nothing(postgres_url: str) -> None:
    upgrade(postgres_url)
    require_current(postgres_url)


def test_an_empty_store_is_refused_with_both_revisions_named(postgres_server: PostgresServer) -> None:
    with (
        postgres_server.database("template0") as url,
        pytest.raises(StoreRevisionMismatch, match=r"revision none \(empty\).* needs 0002.*psrl up"),
    ):
        require_current(url)


def test_a_store_of_another_release_is_refused(postgres_url: str) -> None:
    engine = sync_engine(postgres_url)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    finally:
        engine.dispose()
    with pytest.raises(StoreRevisionMismatch, match="revision 9999, this release needs 0002"):
        require_current(postgres_url)
