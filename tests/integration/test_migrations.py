"""The migrations make exactly the tables that the code believes in, and keep what is in them."""

from collections.abc import Callable
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError

from psrl.activities.store.connections import sync_store
from psrl.activities.store.migrate import downgrade, require_current, upgrade
from psrl.schemas.errors import StoreRevisionMismatch
from psrl.schemas.tables import Base
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.integration


def tables(url: str) -> set[str]:
    engine = sync_store(url)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_migrated_schema_equals_the_table_definitions(postgres_url: str) -> None:
    engine = sync_store(postgres_url)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_server_default": True})
            assert compare_metadata(context, Base.metadata) == []
    finally:
        engine.dispose()
    assert tables(postgres_url) == {*Base.metadata.tables, "alembic_version"}


def checks(url: str) -> dict[str, str]:
    """Name -> condition, as PostgreSQL understood it."""
    return dict(
        rows(url, "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c' ORDER BY conname")
    )


def rows(url: str, query: str) -> list[Any]:
    return with_connection(url, lambda connection: [tuple(row) for row in connection.execute(text(query))])


def execute(url: str, statements: str) -> None:
    with_connection(url, lambda connection: connection.exec_driver_sql(statements))


def with_connection(url: str, call: Callable[[Any], Any]) -> Any:
    engine = sync_store(url)
    try:
        with engine.begin() as connection:
            return call(connection)
    finally:
        engine.dispose()


def test_migrated_checks_equal_those_of_the_table_definitions(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Alembic's comparison leaves them out."""
    with postgres_server.database("template0") as url:
        with_connection(url, Base.metadata.create_all)
        assert checks(postgres_url) == checks(url)


OLD_ROWS = """
    INSERT INTO runs (run_id, workflow_run_id, config, total_steps, prompts, skipped_too_long, data_fingerprint, phase)
        VALUES ('old', 'w', '{}', 1, 1, 0, 'f', 'running');
    INSERT INTO groups (run_id, group_id, purpose, epoch, position, row, version_tag, prompt_ids, prompt_text,
                        data_source, extra, status)
        SELECT 'old', id, 'train', 0, 0, 0, 0, '', '', '', '{}', status
        FROM (VALUES ('000000', 'live'), ('000001', 'complete')) AS old (id, status);
    INSERT INTO trajectories (run_id, group_id, index, fence, status, "end", tokens, reward)
        VALUES ('old', '000000', 0, 3, 'scored', 'length', 3, 0.5), ('old', '000000', 1, 1, 'pending', NULL, 1, NULL),
               ('old', '000001', 0, 0, 'pending', NULL, 0, NULL);
    INSERT INTO segments (run_id, group_id, index, turn, seq, fence, version, instance, tokens, token_ids, logprobs,
                          "end", started_at, finished_at)
        VALUES ('old', '000000', 0, 0, 0, 1, 0, 'rollout-0', 2, 'aaaabbbb', 'aaaabbbb', NULL,
                '2026-01-01 00:00:00Z', '2026-01-01 00:00:01Z'),
               ('old', '000000', 0, 0, 1, 3, 1, 'rollout-1', 1, 'cccc', 'cccc', 'length',
                '2026-01-01 00:00:02Z', '2026-01-01 00:00:03Z'),
               ('old', '000000', 1, 0, 0, 1, 0, 'rollout-0', 1, 'dddd', 'dddd', NULL,
                '2026-01-01 00:00:00Z', '2026-01-01 00:00:04Z');
"""
OLD_TABLES = ("groups", "trajectories", "segments")


@pytest.fixture
def old_url(postgres_url: str) -> str:
    """A store of the revision before turns had a table, with a run in it."""
    downgrade(postgres_url, "0002")
    execute(postgres_url, OLD_ROWS)
    return postgres_url


def test_a_run_of_the_schema_without_turns_gets_them(old_url: str) -> None:
    upgrade(old_url)
    times = "extract(epoch FROM finished_at - '2026-01-01 00:00:00Z')::integer"
    assert rows(old_url, f'SELECT group_id, index, turn, tokens, "end", {times} FROM turns ORDER BY 1, 2') == [
        ("000000", 0, 0, 3, "length", 3),
        ("000000", 1, 0, 1, None, None),
    ]
    assert rows(old_url, "SELECT DISTINCT kind, kv_kept FROM segments") == [("sampled", None)]
    assert rows(old_url, "SELECT DISTINCT reward_metrics FROM trajectories") == [({},)]
    assert rows(old_url, "SELECT DISTINCT status FROM groups") == [("live",)]


def test_a_downgrade_brings_back_what_the_schema_without_turns_held(old_url: str) -> None:
    def held() -> list[Any]:
        return [
            rows(old_url, f"SELECT to_jsonb(t) - 'created_at' FROM {table} t WHERE run_id = 'old' ORDER BY t::text")
            for table in OLD_TABLES
        ]

    execute(old_url, "UPDATE groups SET status = 'live'")
    before = held()
    upgrade(old_url)
    downgrade(old_url, "0002")
    assert held() == before


def test_a_downgrade_that_would_train_on_the_environments_tokens_is_refused(old_url: str) -> None:
    upgrade(old_url)
    execute(
        old_url,
        "INSERT INTO turns (run_id, group_id, index, turn, started_at) VALUES ('old', '000000', 0, 1, now());"
        "INSERT INTO segments (run_id, group_id, index, turn, seq, kind, fence, tokens, token_ids, started_at,"
        " finished_at) VALUES ('old', '000000', 0, 1, 0, 'environment', 3, 1, 'eeee', now(), now())",
    )
    with pytest.raises(StoreRevisionMismatch, match="environment tokens, which revision 0002 would train on"):
        downgrade(old_url, "0002")
    require_current(old_url)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE groups SET status = 'complete'",
        "UPDATE trajectories SET status = 'done' WHERE index = 1",
        "UPDATE segments SET kind = 'prompt'",
        "UPDATE segments SET \"end\" = 'interrupted'",
        "UPDATE segments SET kind = 'environment'",
        "UPDATE segments SET version = NULL",
        "UPDATE segments SET logprobs = NULL",
        "UPDATE turns SET \"end\" = 'interrupted', finished_at = now()",
        'UPDATE turns SET "end" = NULL',
    ],
)
def test_the_database_refuses_what_no_enum_and_no_kind_allows(old_url: str, statement: str) -> None:
    upgrade(old_url)
    with pytest.raises(IntegrityError, match="violates check constraint"):
        execute(old_url, statement)


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
        pytest.raises(StoreRevisionMismatch, match=r"revision none \(empty\).* needs 0009.*psrl up"),
    ):
        require_current(url)


def test_a_store_of_another_release_is_refused(postgres_url: str) -> None:
    engine = sync_store(postgres_url)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    finally:
        engine.dispose()
    with pytest.raises(StoreRevisionMismatch, match="revision 9999, this release needs 0009"):
        require_current(postgres_url)
