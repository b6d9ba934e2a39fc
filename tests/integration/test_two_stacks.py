"""Two stacks in two folders: one takes the port of the other while that is down, each is restarted while the other is
up, and neither ever works with the other's servers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from temporalio.client import Client
from typer.testing import CliRunner

from psrl.schemas.errors import NotOurs
from psrl.schemas.stack import Stack, load_stack
from psrl.workers.cli.commands import app
from psrl.workers.process import connect, connect_to
from psrl.workers.stack.orphans import stack_processes
from psrl.workers.stack.settings import UpRequest, load_settings
from psrl.workers.stack.supervision import Supervisor
from psrl.workers.stack.up import down, up
from tests.support.child import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PARTS = ("postgres", "temporal", "coordinator")


def silent(line: str) -> None:
    return None


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    places = tmp_path / "one", tmp_path / "two"
    yield places
    for place in places:
        down(place, silent)
        assert stack_processes(place) == []


def ask(home: Path, **more: object) -> UpRequest:
    return UpRequest(**{"home": home, "cwd": home.parent, "parts": PARTS, **more})  # type: ignore[arg-type]


async def stop_temporal(home: Path) -> None:
    """For as long as the test wants: one that is only killed is started again at once."""
    server = psutil.Process(Supervisor(home).states()["temporal"].pid)
    Supervisor(home)._call("stopProcess", "services:temporal", False)
    server.kill()
    await asyncio.to_thread(psutil.wait_procs, [server])


def start_temporal(home: Path) -> None:
    Supervisor(home)._call("startProcess", "services:temporal", False)


async def started_run(stack: Stack) -> None:
    await (await connect_to(stack)).start_workflow("TrainingRun", id="mine", task_queue="psrl")


async def names(stack: Stack) -> list[str]:
    client: Client = await connect(stack.temporal_address, stack.namespace)
    return sorted([found.id async for found in client.list_workflows()])


async def test_a_stack_whose_port_was_taken_says_whose_it_is_and_moves_at_the_next_up(homes: tuple[Path, Path]) -> None:
    one, two = homes
    first = await up(ask(one, ports={"temporal": free_port()}), silent)
    await started_run(first)
    await stop_temporal(one)
    port = int(first.temporal_address.rpartition(":")[2])
    second = await up(ask(two, ports={"temporal": port}), silent)
    start_temporal(one)
    assert second.temporal_address == first.temporal_address

    status = await asyncio.to_thread(CliRunner(env={"PSRL_HOME": str(one)}).invoke, app, ["status"])
    assert status.exit_code == 1
    assert f"{first.temporal_address} is the Temporal of another stack" in status.stderr
    assert "psrl resume" not in status.output
    with pytest.raises(NotOurs):
        await started_run(first)

    told: list[str] = []
    moved = await up(UpRequest(home=one, cwd=one.parent), told.append)
    assert f"port {port} of temporal is now taken by another process: using {moved.temporal_address[10:]}" in told
    assert moved == load_stack(one)
    assert moved.temporal_id == first.temporal_id != second.temporal_id
    assert (await names(moved), await names(second)) == (["mine"], [])


async def test_each_of_two_stacks_is_restarted_while_the_other_is_up(homes: tuple[Path, Path]) -> None:
    stacks = [await up(ask(home), silent) for home in homes]
    for stack in stacks:
        await started_run(stack)
    for home, before in zip(homes, stacks, strict=True):
        await asyncio.to_thread(down, home, silent)
        after = await up(UpRequest(home=home, cwd=home.parent), silent)
        identity = {"stack_id", "temporal_id", "store_id"}
        assert after.model_dump(include=identity) == before.model_dump(include=identity)
        assert await names(after) == ["mine"]
        await connect_to(after)
    ids = [(stack.stack_id, stack.temporal_id, stack.store_id) for stack in stacks]
    assert all(a != b for a, b in zip(*ids, strict=True))


async def test_an_existing_server_that_is_another_than_before_is_refused_until_it_is_accepted(
    homes: tuple[Path, Path],
) -> None:
    one, two = homes
    theirs = await up(ask(two), silent)
    given = {"temporal_address": theirs.temporal_address, "postgres_url": theirs.postgres_url}
    await up(ask(one, **given), silent)
    await asyncio.to_thread(down, one, silent)
    await asyncio.to_thread(down, two, silent)
    (two / "temporal.db").unlink()
    await up(UpRequest(home=two, cwd=two.parent), silent)
    with pytest.raises(NotOurs, match=r"is the Temporal of another stack .*--accept-changed-servers"):
        await up(UpRequest(home=one, cwd=one.parent), silent)
    accepted = await up(UpRequest(home=one, cwd=one.parent, accept_changed_servers=True), silent)
    kept = load_settings(one)
    assert kept is not None
    assert accepted.temporal_id == kept.temporal_id != theirs.temporal_id
