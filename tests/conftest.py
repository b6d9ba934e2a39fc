"""Fixtures of the real services. Servers live as long as the test process (each pytest-xdist worker has its own), and
start only when a test asks for them; databases and clients belong to one test."""

import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from temporalio.service import RPCError

from psrl.activities.store.connections import async_store, sync_store
from psrl.schemas.ids import InstanceId
from psrl.schemas.stack import STACK_FILE, Stack
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.temporal import TemporalServer, running_temporal

if TYPE_CHECKING:
    from tests.support.small_stack import OpenStack

pytest_plugins = ("pytester", "tests.support.order", "tests.support.leftovers", "tests.support.deadlocks")

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
"""How fast an example is generated or run says something about the machine, not about the code."""


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[TemporalServer]:
    with running_temporal() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A migrated, empty database of this test, as SQLAlchemy URL."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def engine(postgres_url: str) -> Iterator[Engine]:
    """The same for code that blocks."""
    made = sync_store(postgres_url)
    yield made
    made.dispose()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[AsyncEngine]:
    engine = async_store(postgres_url)
    yield engine
    await engine.dispose()


@pytest.fixture
async def temporal_client(temporal_server: TemporalServer) -> AsyncIterator[Client]:
    """Also of a test that was cut short: what still runs is ended, since the server lives on."""
    client = await temporal_server.connect()
    yield client
    async for execution in client.list_workflows("ExecutionStatus = 'Running'"):
        with suppress(RPCError):  # it has ended meanwhile
            await client.get_workflow_handle(execution.id).terminate(reason="its test has ended")


@pytest.fixture
def stack(temporal_server: TemporalServer, postgres_url: str, tmp_path: Path) -> Stack:
    """The addresses of this test's services, also written to `stack.json` under `stack.home`. No coordinator runs."""
    stack = Stack(
        home=tmp_path,
        temporal_address=temporal_server.address,
        postgres_url=postgres_url,
        coordinator_address="127.0.0.1:1",
        weights_dir=tmp_path / "weights",
        checkpoints_dir=tmp_path / "checkpoints",
        instances=(InstanceId("rollout-0"), InstanceId("rollout-1")),
    )
    for folder in (stack.weights_dir, stack.checkpoints_dir):
        folder.mkdir()
    (tmp_path / STACK_FILE).write_text(stack.model_dump_json())
    return stack


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real checkpoint folder: random weights, one token per character, a chat template, a context of 64."""
    from tests.support.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def open_stack(temporal_client: Client, stack: Stack, store: AsyncEngine, tiny_model_dir: Path) -> "OpenStack":
    """`async with open_stack(script=..., instances=2, processes=(), cached_workflows=...) as small:`"""
    from tests.support.small_stack import small_stack

    return functools.partial(small_stack, temporal_client, stack, store, tiny_model_dir)
