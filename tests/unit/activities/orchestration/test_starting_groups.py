"""A wave of groups is started, each told where to begin."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from psrl.activities.orchestration.groups import GroupActivities
from psrl.schemas.config.agentic import AgentLoop
from psrl.schemas.errors import Unreachable
from psrl.schemas.ids import GroupId, InstanceId, RunId
from psrl.schemas.messages.rollout import Placement, RouteRequest, RouteResult
from psrl.schemas.messages.run import StartGroup, StartGroups
from tests.support.groups import rollout_settings

GROUPS = (GroupId("000001"), GroupId("000002"))
TEMPLATE = StartGroup(
    run_id=RunId("run"),
    group_id=GroupId(""),
    run_workflow_id="run",
    version_tag=3,
    rollout=rollout_settings(needed=1),
)


async def started(place: Any, template: StartGroup = TEMPLATE) -> dict[str, StartGroup]:
    """What each workflow was started with, by its id."""
    client = AsyncMock(Client)
    activities = GroupActivities(client, AsyncMock(), place)
    await ActivityEnvironment().run(activities.start_groups, StartGroups(template=template, groups=GROUPS))
    return {call.kwargs["id"]: call.args[1] for call in client.start_workflow.await_args_list}


async def test_each_group_is_told_where_there_is_room_for_it_now() -> None:
    async def room_for_one(request: RouteRequest) -> RouteResult:
        assert (request.indices, request.version_tag, request.wait_s) == ((0, 1), 3, 0)
        instance = InstanceId(f"rollout-{int(request.group_id)}")
        return RouteResult(placements=(Placement(index=0, instance=instance, version=4),))

    groups = await started(room_for_one)
    assert {id: [p.instance for p in group.placements] for id, group in groups.items()} == {
        "run/group/000001": ["rollout-1"],
        "run/group/000002": ["rollout-2"],
    }


async def test_a_coordinator_that_is_away_keeps_no_group_from_starting() -> None:
    async def away(request: RouteRequest) -> RouteResult:
        raise Unreachable("coordinator did not answer")

    groups = await started(away)
    assert [group.placements for group in groups.values()] == [(), ()]


async def test_nothing_is_placed_for_agents_which_have_asked_for_nothing_yet() -> None:
    place = AsyncMock()
    rollout = TEMPLATE.rollout.model_copy(update={"agent_loop": AgentLoop.SESSION})
    groups = await started(place, TEMPLATE.model_copy(update={"rollout": rollout}))
    assert [group.placements for group in groups.values()] == [(), ()]
    place.assert_not_awaited()


async def test_a_wave_that_is_cancelled_waits_for_what_the_server_may_have_heard() -> None:
    heard, answer, begun = asyncio.Event(), asyncio.Event(), []

    async def start_workflow(name: str, start: StartGroup, **options: Any) -> None:
        heard.set()
        await answer.wait()
        begun.append(start.group_id)

    async def place(request: RouteRequest) -> RouteResult:
        """The second group never finds out."""
        if request.group_id == GROUPS[1]:
            await asyncio.Event().wait()
        return RouteResult(placements=())

    client, environment = AsyncMock(Client), ActivityEnvironment()
    client.start_workflow = start_workflow
    activities = GroupActivities(client, AsyncMock(), place)
    wave = asyncio.create_task(
        environment.run(activities.start_groups, StartGroups(template=TEMPLATE, groups=GROUPS))  # type: ignore[arg-type]
    )
    await heard.wait()
    environment.cancel()
    done, _ = await asyncio.wait([wave], timeout=0.05)
    assert (done, begun) == (set(), [])
    answer.set()
    with pytest.raises(asyncio.CancelledError):
        await wave
    assert begun == [GROUPS[0]]
