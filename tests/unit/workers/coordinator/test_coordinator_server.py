"""The coordinator over real gRPC, and its client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import ValidationError
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from psrl.activities.routing.activities import RoutingActivities
from psrl.activities.routing.wire import decode, encode
from psrl.schemas.config import RoutingMethod, RoutingStrategy
from psrl.schemas.cost_model import CostModel
from psrl.schemas.errors import Unreachable, UserError
from psrl.schemas.ids import GroupId, InstanceId, RunId
from psrl.schemas.messages import coordination as coordination_messages
from psrl.schemas.messages import fleet as fleet_messages
from psrl.schemas.messages import rollout as rollout_messages
from psrl.schemas.messages.rollout import DispatchPlanRequest, InstanceReport, InstanceState, RouteRequest
from psrl.schemas.proto import coordinator_pb2 as pb
from psrl.workers.coordinator.client import CoordinatorClient
from psrl.workers.coordinator.fleet import Fleet
from psrl.workers.coordinator.server import start_server
from psrl.workers.coordinator.waiting import RouteQueue
from tests.support.attached import ReportingClient

RUN = RunId("run")


@pytest.fixture
async def client() -> AsyncIterator[ReportingClient]:
    server, port = await start_server("127.0.0.1:0")
    async with ReportingClient(f"127.0.0.1:{port}") as connected:
        yield connected
    await server.stop(None)


def serving(name: str = "rollout-0", **more: Any) -> InstanceReport:
    values = {"run_id": RUN, "version": 3, "max_num_seqs": 4, "pid": 7, **more}
    return InstanceReport(instance=InstanceId(name), state=InstanceState.SERVING, **values)


def ask(group: int, count: int = 1, tag: int = 3, wait_s: float = 5.0) -> RouteRequest:
    return RouteRequest(
        run_id=RUN, group_id=GroupId(f"{group:06d}"), indices=tuple(range(count)), version_tag=tag, wait_s=wait_s
    )


MODULES = (rollout_messages, fleet_messages, coordination_messages)
EMPTY = {"FleetRequest"}


@pytest.mark.parametrize("name", sorted(set(pb.DESCRIPTOR.message_types_by_name) - EMPTY))
def test_every_message_has_the_same_fields_in_protobuf_and_pydantic(name: str) -> None:
    ours = next(getattr(module, name) for module in MODULES if hasattr(module, name))
    assert set(pb.DESCRIPTOR.message_types_by_name[name].fields_by_name) == set(ours.model_fields)


def test_a_report_survives_the_wire_unchanged() -> None:
    lengths = {"requests": ("a", "b"), "prompt_tokens": (7, 8), "generated_tokens": (0, 2**20)}
    cost = CostModel(
        other_threshold=0.0, other_latency_b=-0.25, other_latency_k=0.5, attn_latency_b=1.0, attn_latency_k=2.0
    )
    report = serving(
        tokens_total=2**40, kv_cache_usage=0.25, received=2**33, version=-1, **lengths, itl_s=0.0, cost=cost
    )
    wire = pb.InstanceReport.FromString(encode(report, pb.InstanceReport).SerializeToString())
    assert decode(wire, InstanceReport) == report


def test_a_report_whose_lengths_are_not_of_its_requests_is_refused() -> None:
    with pytest.raises(ValidationError, match="1 requests with lengths of others"):
        serving(requests=("a",), prompt_tokens=(7, 8), generated_tokens=(0,))


async def test_reports_are_seen_and_routed_to(client: ReportingClient) -> None:
    await client.report(serving("rollout-0"))
    await client.report(serving("rollout-1", version=2))
    result = await client.route(ask(0, count=2))
    assert [(p.index, p.instance, p.version) for p in result.placements] == [(0, "rollout-0", 3), (1, "rollout-0", 3)]
    plan = await client.plan(DispatchPlanRequest(run_id=RUN, trajectories_per_group=2))
    assert [(room.version, room.groups) for room in plan.rooms] == [(3, 1), (2, 2)]
    fleet = await client.fleet()
    assert [(item.report.instance, item.load) for item in fleet.instances] == [("rollout-0", 2), ("rollout-1", 0)]


async def test_the_method_comes_with_the_request(client: ReportingClient) -> None:
    for name in ("rollout-0", "rollout-1"):
        await client.report(serving(name))
    request = ask(0).model_copy(update={"strategy": RoutingStrategy(method=RoutingMethod.ROUND_ROBIN)})
    instances = [(await client.route(request)).placements[0].instance for _ in range(3)]
    assert instances == ["rollout-0", "rollout-1", "rollout-0"]


async def test_a_call_without_room_is_held_until_a_report_makes_room(client: ReportingClient) -> None:
    await client.report(serving(running=4))
    held = asyncio.create_task(client.route(ask(0, wait_s=30)))
    await client.fleet()  # the held call was sent before this one on the same channel
    assert not held.done()
    await client.report(serving(running=3))
    async with asyncio.timeout(60):
        assert len((await held).placements) == 1


async def test_a_call_that_finds_no_room_in_time_says_why(client: ReportingClient) -> None:
    await client.report(serving(running=4))
    result = await client.route(ask(0, wait_s=0.05))
    assert result.placements == ()
    assert result.reason == "1 instance: rollout-0 full 4/4"


async def test_waiting_calls_are_served_oldest_tag_first() -> None:
    fleet = Fleet()
    queue = RouteQueue(fleet)
    server, port = await start_server("127.0.0.1:0", fleet=fleet, queue=queue)
    async with ReportingClient(f"127.0.0.1:{port}") as client, asyncio.timeout(60):
        await client.report(serving(running=4))
        late = asyncio.create_task(client.route(ask(9, tag=3, wait_s=30)))
        early = asyncio.create_task(client.route(ask(4, tag=1, wait_s=30)))
        while len(list(queue.waiting())) < 2:
            await client.fleet()
        await client.report(serving(running=3))
        assert len((await early).placements) == 1
        assert not late.done()
        await client.report(serving(running=3, received=1))
        assert len((await late).placements) == 1
    await server.stop(None)


async def test_an_unreachable_coordinator_is_a_retryable_error_that_names_the_address() -> None:
    async with CoordinatorClient("127.0.0.1:9") as client:
        with pytest.raises(Unreachable, match=r"coordinator at 127\.0\.0\.1:9 did not answer Fleet"):
            await client.fleet()


async def test_the_activity_reports_an_unreachable_coordinator_as_retryable() -> None:
    async with CoordinatorClient("127.0.0.1:9") as client:
        activities = RoutingActivities(client)
        with pytest.raises(ApplicationError) as caught:
            await ActivityEnvironment().run(activities.route, ask(0))
    assert caught.value.type == "Unreachable"
    assert not caught.value.non_retryable


async def test_the_activities_answer_what_the_coordinator_says(client: ReportingClient) -> None:
    await client.report(serving())
    activities = RoutingActivities(client)
    environment = ActivityEnvironment()
    assert (await environment.run(activities.route, ask(0))).placements[0].instance == "rollout-0"
    request = DispatchPlanRequest(run_id=RUN, trajectories_per_group=1)
    assert (await environment.run(activities.plan_dispatch, request)).rooms[0].groups == 3


async def test_a_taken_port_is_named() -> None:
    server, port = await start_server("127.0.0.1:0")
    with pytest.raises(UserError, match=f"127.0.0.1:{port}"):
        await start_server(f"127.0.0.1:{port}")
    await server.stop(None)
