"""The coordinator as it steers a fleet over real gRPC: when instances sync, which requests move."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from psrl.activities.routing import client as routing_client
from psrl.schemas.config.sync_and_mig import Migration, SyncAndMigStrategy, SyncMethod, SyncMode, SyncStrategy
from psrl.schemas.errors import FatalError, NotOurs, Unreachable
from psrl.schemas.ids import GroupId, InstanceId, RunId, engine_request
from psrl.schemas.messages.coordination import HostCommandKind, SyncAnswer, SyncRequest
from psrl.schemas.messages.rollout import (
    DispatchPlanRequest,
    DispatchRoom,
    InstanceReport,
    InstanceState,
    RouteRequest,
)
from psrl.workers.coordinator import migrations
from psrl.workers.coordinator import server as server_module
from psrl.workers.coordinator.client import CoordinatorClient
from psrl.workers.coordinator.server import start_server
from tests.support.attached import ReportingClient

RUN, GROUP = RunId("run"), GroupId("000007")
BY_REQUESTS = SyncAndMigStrategy(method=SyncMethod.STATUS_BASED, sync=SyncStrategy(threshold=2))
MOVES = Migration(enable=True, threshold=2)


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ReportingClient]:
    """Every report is looked at, however soon after another."""
    monkeypatch.setattr(migrations, "CHECK_S", 0.0)
    server, port = await start_server("127.0.0.1:0")
    async with ReportingClient(f"127.0.0.1:{port}") as connected:
        yield connected
    await server.stop(None)


def serving(number: int = 0, requests: int = 0, **more: Any) -> InstanceReport:
    names = tuple(engine_request(GROUP, index, number) for index in range(requests))
    values = {
        "run_id": RUN,
        "state": InstanceState.SERVING,
        "version": 3,
        "max_num_seqs": 64,
        "pid": 7,
        "running": requests,
        "requests": names,
        "prompt_tokens": (10,) * requests,
        "generated_tokens": (5,) * requests,
        "received": requests,
    }
    return InstanceReport(instance=InstanceId(f"rollout-{number}"), **{**values, **more})


def wants(wait_s: float = 30.0, **more: Any) -> SyncRequest:
    values = {"version": 4, "strategy": BY_REQUESTS, "mode": SyncMode.INTERRUPT, "wait_s": wait_s, **more}
    return SyncRequest(run_id=RUN, instance=InstanceId("rollout-0"), **values)


def ask(*indices: int, tag: int = 3, wait_s: float = 30.0) -> RouteRequest:
    return RouteRequest(run_id=RUN, group_id=GROUP, indices=indices, version_tag=tag, wait_s=wait_s)


async def answered(call: "asyncio.Task[SyncAnswer]") -> SyncAnswer:
    async with asyncio.timeout(60):
        return await call


# --- when an instance syncs ------------------------------------------------------------------------------------------


async def test_a_sync_waits_until_a_report_says_that_the_moment_is_good(client: ReportingClient) -> None:
    await client.report(serving(requests=3))
    waits = asyncio.create_task(client.sync_due(wants()))
    await client.fleet()
    assert not waits.done()
    await client.report(serving(requests=2))
    assert await answered(waits) == SyncAnswer(due=True, reason="request_num is 2, at most the threshold of 2")


async def test_one_that_is_not_due_in_time_says_why(client: ReportingClient) -> None:
    await client.report(serving(requests=3))
    answer = await client.sync_due(wants(wait_s=0.05))
    assert answer == SyncAnswer(due=False, reason="request_num is 3, above the threshold of 2")


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (None, "rollout-0 has not reported"),
        (serving(state=InstanceState.PULLING), "rollout-0 does not serve"),
    ],
)
async def test_who_is_not_known_to_serve_waits(
    client: ReportingClient, report: InstanceReport | None, reason: str
) -> None:
    """A coordinator that was just started has not heard of anybody."""
    if report is not None:
        await client.report(report)
    assert await client.sync_due(wants(wait_s=0.05)) == SyncAnswer(due=False, reason=reason)


async def test_what_the_ledger_admits_makes_a_sync_due_when_nobody_serves_it(client: ReportingClient) -> None:
    await client.report(serving(0, requests=30))
    await client.report(serving(1, requests=40))
    waits = asyncio.create_task(client.sync_due(wants()))
    await client.fleet()
    admits = (DispatchRoom(version=3, groups=0), DispatchRoom(version=4, groups=2))
    await client.plan(DispatchPlanRequest(run_id=RUN, trajectories_per_group=8, admits=admits))
    answer = await answered(waits)
    assert answer.due
    assert "the ledger admits new groups at no version that is served" in answer.reason


@pytest.mark.parametrize("number", range(3))
async def test_a_lost_instance_is_not_waited_for(client: ReportingClient, number: int) -> None:
    """Three times: which of the calls comes first is not said."""
    await client.report(serving(0, requests=30))
    await client.report(serving(1, state=InstanceState.LOST, version=-1))
    route = asyncio.create_task(client.route(ask(0, tag=4)))
    answer = await client.sync_due(wants(wait_s=4.0))  # its reports are of now for five seconds
    assert (answer.due, "which nobody serves" in answer.reason) == (True, True), answer
    route.cancel()
    await asyncio.gather(route, return_exceptions=True)


async def test_so_does_a_trajectory_that_needs_the_newer_version(client: ReportingClient) -> None:
    await client.report(serving(0, requests=30))
    waits = asyncio.create_task(client.sync_due(wants()))
    await client.fleet()
    route = asyncio.create_task(client.route(ask(0, tag=4)))
    answer = await answered(waits)
    assert answer.due
    assert "trajectories wait for a version newer than v3" in answer.reason
    await client.report(serving(0, version=4))
    async with asyncio.timeout(60):
        assert (await route).placements[0].version == 4


# --- which requests move ---------------------------------------------------------------------------------------------


async def test_a_busy_host_is_told_to_give_some_requests_away_and_they_go_to_the_starved_one(
    client: ReportingClient,
) -> None:
    await client.report(serving(0, requests=6, migration=MOVES))
    await client.report(serving(1, migration=MOVES))
    async with asyncio.timeout(60):
        command = await client.commands.get()
    assert (command.run_id, command.kind) == (RUN, HostCommandKind.INTERRUPT)
    assert command.requests == tuple(engine_request(GROUP, index, 0) for index in range(3))
    assert command.reason == "to rollout-1: request_num 6 against 0"
    await client.report(serving(1, migration=MOVES, tokens_total=1))
    await client.report(serving(2, migration=MOVES))
    assert client.commands.empty(), "the same gap is not filled twice"
    placed = await client.route(ask(0, 1, 2))
    assert {placement.instance for placement in placed.placements} == {"rollout-1"}


async def test_the_next_migration_waits_until_all_of_the_last_are_placed_again(client: ReportingClient) -> None:
    await client.report(serving(0, requests=6, migration=MOVES))
    await client.report(serving(1, migration=MOVES))
    async with asyncio.timeout(60):
        await client.commands.get()
    await client.route(ask(0, 1))
    await client.report(serving(2, requests=60, migration=MOVES))
    await client.report(serving(3, migration=MOVES))
    assert client.commands.empty()
    await client.route(ask(2))
    await client.report(serving(3, migration=MOVES, tokens_total=1))
    async with asyncio.timeout(60):
        assert len((await client.commands.get()).requests) == 30


async def test_nothing_moves_in_a_run_that_has_not_chosen_it(client: ReportingClient) -> None:
    await client.report(serving(0, requests=6))
    await client.report(serving(1))
    await client.fleet()
    assert client.commands.empty()


async def test_commands_go_to_the_newest_stream_of_an_instance(client: ReportingClient) -> None:
    """A host that was restarted, or lost its connection, attaches anew; the old stream may linger."""
    await client.report(serving(0, requests=6, migration=MOVES))
    async with ReportingClient(client.address) as again:
        await again.report(serving(0, requests=6, migration=MOVES, tokens_total=1))
        await client.report(serving(1, migration=MOVES))
        async with asyncio.timeout(60):
            assert (await again.commands.get()).requests
    assert client.commands.empty()


# --- the stream ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_a_report_that_says_nonsense_is_refused(client: ReportingClient) -> None:
    bad = serving().model_copy(update={"state": "asleep"})
    with pytest.raises(FatalError, match="refused Attach"):
        await client.report(bad)


async def test_a_coordinator_that_hangs_is_given_up_and_one_that_says_nothing_is_not(
    client: ReportingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing_client, "SILENCE_S", 2.0)
    await client.report(serving())
    async with asyncio.timeout(60):
        monkeypatch.setattr(server_module, "SIGN_OF_LIFE_S", 0.05)
        await asyncio.wait([client.stream], timeout=3)
        assert not client.stream.done()
        monkeypatch.setattr(server_module, "SIGN_OF_LIFE_S", 3600)
        with pytest.raises(Unreachable, match="gave no sign of life for 2 s"):
            await client.stream


async def test_another_stacks_host_is_refused() -> None:
    """L14."""

    async def reports() -> AsyncIterator[InstanceReport]:
        yield serving()

    server, port = await start_server("127.0.0.1:0", "ours")
    try:
        async with CoordinatorClient(f"127.0.0.1:{port}", "theirs") as stranger:
            with pytest.raises(NotOurs, match="the coordinator of another stack"):
                await anext(aiter(stranger.attach(reports())))
    finally:
        await server.stop(None)
