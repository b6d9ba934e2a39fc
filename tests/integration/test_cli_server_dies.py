"""Temporal dies in the middle of a command: who follows waits and is told, other commands end with one line."""

import asyncio
import io
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from rich.console import Console

from psrl.schemas.errors import RunUnknown, Unreachable, UserError
from psrl.schemas.stack import STACK_FILE, Stack
from psrl.workers.cli import runs
from psrl.workers.cli.follow import RunFailed, follow
from psrl.workers.cli.runs import is_running, temporal_of
from tests.support.temporal import TemporalServer, running_temporal

pytestmark = pytest.mark.integration

RUN = "live"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TemporalServer]:
    monkeypatch.setattr(runs, "RPC_TIMEOUT", timedelta(seconds=1))
    with running_temporal() as found:
        yield found


@pytest.fixture
def mortal(stack: Stack, server: TemporalServer) -> Stack:
    """The stack on a server that may die; its run waits for an orchestrator that does not come."""
    found = stack.model_copy(update={"temporal_address": server.address})
    (stack.home / STACK_FILE).write_text(found.model_dump_json())

    async def start() -> None:
        async with temporal_of(found) as client:
            await client.start_workflow("TrainingRun", id=RUN, task_queue="psrl")

    asyncio.run(start())
    return found


def test_a_server_that_dies_during_a_command_is_told_in_words_of_our_own(
    mortal: Stack, server: TemporalServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "RPC_TIMEOUT", timedelta(seconds=8))  # the client warns of its fifth attempt, after 4 s

    async def work() -> None:
        async with temporal_of(mortal) as client:
            assert await is_running(client, RUN)
            await asyncio.to_thread(server.kill)
            await is_running(client, RUN)

    with pytest.raises(Unreachable) as caught:
        asyncio.run(work())
    assert str(caught.value).startswith(f"Temporal at {server.address} (namespace 'default') did not answer: ")
    assert "`psrl up` starts the stack" in str(caught.value)
    assert "tonic" not in str(caught.value)
    assert "".join(capfd.readouterr()) == "", "the client's own warnings belong into logs"


def test_who_follows_is_told_who_is_away_and_sees_the_end_when_they_are_back(
    mortal: Stack, server: TemporalServer
) -> None:
    shown = io.StringIO()
    ended: list[BaseException] = []

    async def work() -> None:
        async with temporal_of(mortal) as client:
            await follow(client, mortal, RUN, Console(file=shown))

    def run() -> None:
        try:
            asyncio.run(work())
        except RunFailed as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    _until(shown, "no answer from an orchestrator and the coordinator; waiting, `psrl status` shows the parts")
    server.kill()
    _until(shown, "no answer from Temporal and the coordinator; waiting, `psrl status` shows the parts")
    server.start()
    asyncio.run(_terminate(mortal))
    thread.join(60)
    assert not thread.is_alive()
    assert str(ended[0]) == "it was terminated in Temporal (by hand)"


def test_who_follows_a_run_whose_stack_was_started_at_another_address_is_told(
    mortal: Stack, server: TemporalServer
) -> None:
    async def work() -> None:
        async with temporal_of(mortal) as client:
            await asyncio.to_thread(server.kill)
            moved = mortal.model_copy(update={"temporal_address": "127.0.0.1:2"})
            (mortal.home / STACK_FILE).write_text(moved.model_dump_json())
            await follow(client, mortal, RUN, Console(file=io.StringIO()))

    with pytest.raises(UserError, match=f"restarted at other addresses; `psrl follow {RUN}` shows"):
        asyncio.run(asyncio.wait_for(work(), 60))


def test_who_follows_a_run_that_temporal_has_lost_is_told(mortal: Stack, server: TemporalServer) -> None:
    async def work() -> None:
        async with temporal_of(mortal) as client:
            following = asyncio.create_task(follow(client, mortal, RUN, Console(file=io.StringIO())))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.lose_data)
            await asyncio.to_thread(server.start)
            await following

    with pytest.raises(RunUnknown, match=f"Temporal no longer knows run {RUN}: .*`psrl status {RUN}`"):
        asyncio.run(asyncio.wait_for(work(), 60))


async def _terminate(stack: Stack) -> None:
    async with temporal_of(stack) as client:
        await client.get_workflow_handle(RUN).terminate(reason="by hand")


def _until(shown: io.StringIO, wanted: str) -> None:
    deadline = time.monotonic() + 60
    while wanted not in shown.getvalue().replace("\n", " "):
        assert time.monotonic() < deadline, shown.getvalue()
        time.sleep(0.05)
