"""A server of another stack has our port: its tasks are not begun, nothing is started there, ours is served again."""

import asyncio
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from psrl.activities.store.connections import async_store, sync_store
from psrl.activities.store.identity import store_id
from psrl.activities.store.reach import opened
from psrl.schemas.errors import NotOurs
from psrl.schemas.ids import ORCHESTRATOR_QUEUE
from psrl.schemas.stack import STACK_FILE, Stack
from psrl.workers.coordinator.client import CoordinatorClient
from psrl.workers.coordinator.server import start_server
from psrl.workers.identity import namespace_id
from psrl.workers.process import connect_to
from psrl.workers.stack import parts, ready
from tests.support.child import spawn, stop
from tests.support.rollout import until
from tests.support.temporal import TemporalServer

pytestmark = pytest.mark.integration

QUEUE = "shared-name"
REFUSED = (EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT)


@workflow.defn
class Work:
    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_activity("work", start_to_close_timeout=timedelta(seconds=5))


class Hands:
    """The activity of one stack's worker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done: list[str] = []

    @activity.defn(name="work")
    async def work(self) -> str:
        self.done.append(activity.info().workflow_id)
        return self.name


@asynccontextmanager
async def worker(client: Client, hands: Hands | None = None, workflows: bool = False) -> AsyncIterator[None]:
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Work] if workflows else [],
        activities=[hands.work] if hands else [],
        workflow_runner=UnsandboxedWorkflowRunner(),
        graceful_shutdown_timeout=timedelta(0),
    ):
        yield


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[TemporalServer, TemporalServer]]:
    """Two stacks' servers with one address; neither runs."""
    folders = [tmp_path / name for name in ("ours", "theirs")]
    for folder in folders:
        folder.mkdir()
    ours = TemporalServer(folders[0])
    theirs = TemporalServer(folders[1], ours.port)
    yield ours, theirs
    for server in (ours, theirs):
        server.kill()


async def start(client: Client) -> str:
    name = uuid.uuid4().hex
    await client.start_workflow(Work.run, id=name, task_queue=QUEUE)
    return name


async def identified(stack: Stack, server: TemporalServer) -> Stack:
    found = await namespace_id(await server.connect())
    return stack.model_copy(update={"temporal_address": server.address, "temporal_id": found})


async def activity_handed_out(client: Client, names: list[str]) -> bool:
    """Our worker has one of the activities."""
    for name in names:
        described = await client.get_workflow_handle(name).describe()
        for call in described.raw_description.pending_activities:
            if call.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
                return True
    return False


async def workflow_refused(client: Client, names: list[str]) -> bool:
    """Our worker had a task of one of the workflows."""
    histories = [await client.get_workflow_handle(name).fetch_history() for name in names]
    kinds = {event.event_type for history in histories for event in history.events}
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED not in kinds
    return not kinds.isdisjoint(REFUSED)


@pytest.mark.parametrize(
    ("activities", "handed_out"), [(True, activity_handed_out), (False, workflow_refused)], ids=["activity", "workflow"]
)
async def test_a_task_of_another_stacks_server_is_not_begun(
    stack: Stack,
    servers: tuple[TemporalServer, TemporalServer],
    activities: bool,
    handed_out: Callable[[Client, list[str]], Awaitable[bool]],
) -> None:
    """Our worker takes the one kind of task and theirs the other."""
    ours, theirs = servers
    await asyncio.to_thread(ours.start)
    foreign: asyncio.Future[NotOurs] = asyncio.get_running_loop().create_future()
    client = await connect_to(await identified(stack, ours), on_foreign=foreign.set_result)
    hands, others = Hands("ours"), Hands("theirs")
    async with worker(client, hands if activities else None, workflows=not activities):
        ours.kill()
        await asyncio.to_thread(theirs.start)
        their_client = await theirs.connect()
        async with worker(their_client, None if activities else others, workflows=activities):
            names = [await start(their_client) for _ in range(10)]
            assert "is the Temporal of another stack" in str(await asyncio.wait_for(foreign, 30))
            await until(lambda: handed_out(their_client, names))
    # What our process had been handed is given to their own worker when our process has ended.
    async with worker(their_client, others, workflows=True):
        for name in names:
            assert await their_client.get_workflow_handle(name).result() == "theirs"
    assert hands.done == []


async def test_a_worker_whose_own_server_comes_back_works_on(
    stack: Stack, servers: tuple[TemporalServer, TemporalServer]
) -> None:
    ours, _ = servers
    await asyncio.to_thread(ours.start)
    client = await connect_to(await identified(stack, ours), on_foreign=lambda error: pytest.fail(str(error)))
    hands = Hands("ours")
    async with worker(client, hands, workflows=True):
        ours.kill()
        await asyncio.to_thread(ours.start)
        assert await client.execute_workflow(Work.run, id="second", task_queue=QUEUE) == "ours"
    assert hands.done == ["second"]


async def test_a_client_starts_nothing_on_another_stacks_server(
    stack: Stack, servers: tuple[TemporalServer, TemporalServer]
) -> None:
    ours, theirs = servers
    await asyncio.to_thread(ours.start)
    known = await identified(stack, ours)
    client = await connect_to(known)
    ours.kill()
    await asyncio.to_thread(theirs.start)
    with pytest.raises(NotOurs, match=f"{known.temporal_address} is the Temporal of another stack .*psrl up"):
        await start(client)
    with pytest.raises(NotOurs):
        await connect_to(known)
    assert [found async for found in (await theirs.connect()).list_workflows()] == []


async def test_a_database_of_another_stack_gets_no_connection(postgres_url: str) -> None:
    with opened(postgres_url) as engine, engine.connect() as connection:
        ours = store_id(connection.connection.dbapi_connection)
    with opened(postgres_url, ours) as engine:
        engine.connect().close()
    with (
        pytest.raises(NotOurs, match=r"is the PostgreSQL of another stack .*accept-changed-servers"),
        opened(postgres_url, "another") as engine,
    ):
        engine.connect()
    store = async_store(postgres_url, store_id="another")
    with pytest.raises(OperationalError, match="ours is another"):
        await store.connect()
    await store.dispose()


async def test_an_empty_database_is_not_ours_either(postgres_server: object, postgres_url: str) -> None:
    engine = sync_store(postgres_url, store_id="")
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE store_identity")
    engine.dispose()
    with pytest.raises(NotOurs, match="empty, ours is known"), opened(postgres_url, "known") as mine:
        mine.connect()


async def test_a_coordinator_refuses_the_calls_of_another_stack() -> None:
    server, port = await start_server("127.0.0.1:0", "ours")
    try:
        async with CoordinatorClient(f"127.0.0.1:{port}", "ours") as client:
            assert (await client.fleet()).instances == ()
        async with CoordinatorClient(f"127.0.0.1:{port}", "theirs") as client:
            with pytest.raises(NotOurs, match=r"is the coordinator of another stack \(ours, ours is theirs\)"):
                await client.fleet()
    finally:
        await server.stop(None)


async def test_a_worker_process_ends_when_another_stack_has_its_port_and_serves_its_own_when_that_is_back(
    stack: Stack, servers: tuple[TemporalServer, TemporalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = servers
    await asyncio.to_thread(ours.start)
    known = await identified(stack, ours)
    (stack.home / STACK_FILE).write_text(known.model_dump_json())
    monkeypatch.setenv("PSRL_HOME", str(stack.home))
    log = stack.home / "orchestrator.log"
    command = [sys.executable, "-m", "psrl.workers.orchestrator"]
    process = spawn(command, log)
    try:
        await _polls(await ours.connect())
        ours.kill()
        await asyncio.to_thread(theirs.start)
        assert await asyncio.to_thread(process.wait, 30) == 1
        assert "is the Temporal of another stack" in log.read_text()
        theirs.kill()
        process = spawn(command, log)  # as its supervisor does
        await asyncio.to_thread(ours.start)
        await _polls(await ours.connect())
    finally:
        stop(process, signal.SIGKILL)


async def _polls(client: Client) -> None:
    """Until a worker that was started after this call looks for workflow tasks."""
    orchestrator, since = parts.Worker("orchestrator", (), ORCHESTRATOR_QUEUE, polls_workflows=True), time.time()
    async with asyncio.timeout(60):
        while True:
            if not await ready.polls(client, orchestrator, since):
                return
            await asyncio.sleep(0.1)
