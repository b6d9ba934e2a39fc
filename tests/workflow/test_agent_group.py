"""A group whose episodes agents play: who is run how often, and what the group makes of how they end."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from psrl.schemas.config.agentic import AgentLoop
from psrl.schemas.ids import (
    AGENT_QUEUE,
    ORCHESTRATOR_QUEUE,
    GroupId,
    InstanceId,
    RunId,
    evaluation_workflow,
    group_workflow,
)
from psrl.schemas.messages.agents import AgentRun, RunAgent
from psrl.schemas.messages.episodes import TerminateReason
from psrl.schemas.messages.run import Answered, EvaluationReport, GroupOutcome, GroupReport, StartEvaluation, StartGroup
from psrl.workflows.rollout.evaluation import Evaluation
from psrl.workflows.rollout.group import RolloutGroup
from tests.support.groups import rollout_settings
from tests.support.scripted_parts import ScriptedParts

GROUP = GroupId("000007")
R = TerminateReason
DONE = AgentRun(ended=R.FINISHED, turns=3, tokens=12, segments=4, versions=(0, 1))


class Agents:
    """`ends`: how runs of an episode end, one after the other; the last one is repeated."""

    def __init__(self, **ends: Any) -> None:
        self._ends = {int(name.removeprefix("t")): runs for name, runs in ends.items()}
        self.asked: list[RunAgent] = []
        self.hanging, self.cancelled = asyncio.Event(), asyncio.Event()

    @activity.defn(name="run_agent")
    async def run_agent(self, request: RunAgent) -> AgentRun:
        self.asked.append(request)
        runs = self._ends.get(request.episode, [DONE])
        nth = sum(other == request for other in self.asked) - 1
        run = runs[min(nth, len(runs) - 1)]
        if run is None:
            await self._hang()
        assert isinstance(run, AgentRun)
        return run

    async def _hang(self) -> None:
        self.hanging.set()
        try:
            while True:
                activity.heartbeat()
                await asyncio.sleep(0.1)
        finally:
            self.cancelled.set()

    def times(self, episode: int) -> int:
        return sum(request.episode == episode for request in self.asked)


def failed(ended: TerminateReason, error: str = "no idea") -> AgentRun:
    return AgentRun(ended=ended, error=error)


def settings(**rollout: Any) -> Any:
    return rollout_settings(agent_loop=AgentLoop.SESSION, attempts=2, **rollout)


async def begin(client: Client, run_id: str, **rollout: Any) -> Any:
    start = StartGroup(
        run_id=RunId(run_id),
        group_id=GROUP,
        run_workflow_id="nobody",
        version_tag=0,
        rollout=settings(**rollout),
    )
    name = group_workflow(start.run_id, GROUP)
    return await client.start_workflow(RolloutGroup.run, start, id=name, task_queue=ORCHESTRATOR_QUEUE)


async def play(client: Client, run_id: str, agents: Agents, parts: ScriptedParts | None = None, **rollout: Any) -> Any:
    async with AsyncExitStack() as entered:
        await entered.enter_async_context((parts or ScriptedParts()).workers(client))
        await entered.enter_async_context(Worker(client, task_queue=AGENT_QUEUE, activities=[agents.run_agent]))
        report: GroupReport = await (await begin(client, run_id, **rollout)).result()
        return report


async def test_every_episode_is_played_by_an_agent_of_its_own_and_scored(client: Client, run_id: str) -> None:
    agents, parts = Agents(), ScriptedParts()
    report = await play(client, run_id, agents, parts)
    assert (report.outcome, report.reward_mean, report.tokens, report.segments) == (GroupOutcome.COMPLETE, 0.5, 24, 8)
    assert sorted((r.run_id, r.group_id, r.episode, r.episodes) for r in agents.asked) == [
        (run_id, GROUP, 0, 2),
        (run_id, GROUP, 1, 2),
    ]
    assert not parts.generated, "agents ask for turns themselves"


async def test_an_episode_whose_agent_fails_is_played_anew_as_often_as_the_run_allows(
    client: Client, run_id: str
) -> None:
    for ended in (R.ROLLOUT_ERROR, R.TRAJECTORY_TIMEOUT, R.UNKNOWN):
        agents = Agents(t1=[failed(ended), DONE])
        report = await play(client, f"{run_id}-{ended}", agents)
        assert (report.outcome, agents.times(0), agents.times(1)) == (GroupOutcome.COMPLETE, 1, 2)
    agents = Agents(t1=[failed(R.ROLLOUT_ERROR, "not today"), failed(R.TRAJECTORY_TIMEOUT, "not tomorrow")])
    report = await play(client, run_id, agents)
    assert (report.outcome, report.reason) == (GroupOutcome.FAILED, "t01: trajectory_timeout: not tomorrow")
    assert agents.times(1) == 2


async def test_an_episode_that_ran_out_of_context_is_scored_and_one_that_was_dropped_is_not_played_anew(
    client: Client, run_id: str
) -> None:
    full = DONE.model_copy(update={"ended": R.MAX_RESPONSE_LENGTH_EXCEEDED})
    assert (await play(client, f"{run_id}-full", Agents(t0=[full]))).outcome is GroupOutcome.COMPLETE
    agents = Agents(t0=[failed(R.ABORTED, "")])
    report = await play(client, run_id, agents)
    assert (report.outcome, report.reason, agents.times(0)) == (GroupOutcome.FAILED, "t00: aborted", 1)


async def test_agents_that_are_not_needed_any_more_are_cancelled(client: Client, run_id: str) -> None:
    agents = Agents(t2=[None])
    report = await play(client, run_id, agents, offered=3)
    assert report.outcome is GroupOutcome.COMPLETE
    async with asyncio.timeout(60):
        await agents.cancelled.wait()


async def test_a_group_ends_at_its_deadline_though_an_agent_hangs(client: Client, run_id: str) -> None:
    report = await play(client, run_id, Agents(t0=[None]), timeout_s=3)
    assert report.outcome is GroupOutcome.FAILED
    assert report.reason == "t00: not finished before the group's deadline"


async def test_an_agents_group_that_is_cancelled_leaves_no_agent(client: Client, run_id: str) -> None:
    agents = Agents(t0=[None])
    async with AsyncExitStack() as entered:
        await entered.enter_async_context(ScriptedParts().workers(client))
        await entered.enter_async_context(Worker(client, task_queue=AGENT_QUEUE, activities=[agents.run_agent]))
        group = await begin(client, run_id)
        await agents.hanging.wait()
        await group.cancel()
        async with asyncio.timeout(60):
            await agents.cancelled.wait()


async def test_validation_prompts_are_played_by_agents_too(client: Client, run_id: str) -> None:
    agents = Agents()
    groups = (GroupId("v000000-0000"), GroupId("v000000-0001"))
    start = StartEvaluation(
        run_id=RunId(run_id),
        run_workflow_id="nobody",
        version=0,
        rollout=settings(needed=1, offered=1),
        concurrency=2,
        answered=Answered(left=groups, scored=0, failed=0, reward_sum=0.0),
    )
    parts = ScriptedParts()
    parts.versions = {InstanceId("rollout-0"): 0}
    async with AsyncExitStack() as entered:
        await entered.enter_async_context(parts.workers(client))
        await entered.enter_async_context(Worker(client, task_queue=AGENT_QUEUE, activities=[agents.run_agent]))
        name = evaluation_workflow(start.run_id, 0)
        report: EvaluationReport = await client.execute_workflow(
            Evaluation.run, start, id=name, task_queue=ORCHESTRATOR_QUEUE
        )
    assert (report.scored, report.failed) == (2, 0)
    assert {request.group_id for request in agents.asked} == set(groups)
