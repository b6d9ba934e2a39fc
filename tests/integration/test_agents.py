"""Groups played by agents over the gateway, with the real store, orchestrator and agent worker: what becomes of their
episodes, also when agents fail, hang, or lose their worker."""

import asyncio
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client

from examples.mini_swe_agent.generate import tasks
from psrl.activities.data.dataset import DatasetCache
from psrl.activities.data.draw import Draw
from psrl.activities.sessions.sessions import find_session
from psrl.activities.sessions.view import BranchView, branches_of
from psrl.activities.store.activities import StoreActivities
from psrl.schemas.ids import ORCHESTRATOR_QUEUE, GroupId, RunId, SessionId, group_workflow
from psrl.schemas.messages.data import DrawRequest
from psrl.schemas.messages.run import GroupOutcome, GroupReport, RolloutSettings, StartGroup
from psrl.schemas.messages.training import BatchRequest, UpdateStats
from psrl.schemas.stack import Stack
from psrl.schemas.status import SessionStatus
from psrl.schemas.tables import Group, Session, Trajectory
from psrl.workers.cpu import agent_worker, cpu_worker
from psrl.workers.trainer.stages import Stages
from psrl.workflows.rollout.group import RolloutGroup
from tests.support.agents import HANGING, until_gone, until_hanging
from tests.support.child import spawn, stop
from tests.support.gateway_site import GatewaySite, gateway_site, spoken
from tests.support.runs import sums
from tests.support.tiny_model import make_tiny_model
from tests.support.trainer_lab import Lab

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

GROUP = GroupId("000000")
FIRST, SECOND = SessionId("000000-t00"), SessionId("000000-t00.2")
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("talking-model"), context_tokens=4000)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hanging"
    folder.mkdir()
    monkeypatch.setenv(HANGING, str(folder))
    return folder


@pytest.fixture
def lab(tmp_path: Path, engine: Engine, model: Path) -> Lab:
    return Lab(tmp_path, engine, model)


class Ground:
    """A group that is drawn, and what is asked of it."""

    def __init__(self, site: GatewaySite, config: Any) -> None:
        self.site, self._config = site, config

    async def begin(self) -> Any:
        run_id = self.site.run_id
        request = DrawRequest(run_id=run_id, first=0, tags=(0,), places=(0,), trajectories=2)
        await Draw(self.site.store, DatasetCache()).draw_groups(request)
        start = StartGroup(
            run_id=run_id,
            group_id=GROUP,
            run_workflow_id="nobody",
            version_tag=0,
            rollout=RolloutSettings.of(self._config),
        )
        name = group_workflow(run_id, GROUP)
        return await self.site.client.start_workflow(RolloutGroup.run, start, id=name, task_queue=ORCHESTRATOR_QUEUE)

    async def play(self) -> GroupReport:
        report: GroupReport = await (await self.begin()).result()
        return report

    async def rows(self, group: str = GROUP) -> list[tuple[int, str, Any]]:
        of_group = (Trajectory.run_id == self.site.run_id, Trajectory.group_id == group)
        query = select(Trajectory.index, Trajectory.status, Trajectory.outcome).where(*of_group)
        async with self.site.store.connect() as connection:
            return [(i, status, outcome) for i, status, outcome in await connection.execute(query.order_by("index"))]

    async def sessions(self) -> dict[str, tuple[str, str, str]]:
        """Group, status and reason of each, by name."""
        query = select(Session.session_id, Session.group_id, Session.status, Session.reason)
        async with self.site.store.connect() as connection:
            found = await connection.execute(query.where(Session.run_id == self.site.run_id))
            return {name: (group, status, reason) for name, group, status, reason in found}

    async def branches(self, name: SessionId) -> list[BranchView]:
        session = await find_session(self.site.store, self.site.run_id, name)
        assert session is not None
        return await branches_of(self.site.store, session)

    async def until_closed(self) -> None:
        while any(status != "closed" for _, status, _ in (await self.sessions()).values()):  # noqa: ASYNC110 - in rows
            await asyncio.sleep(0.1)

    async def until_ended(self) -> None:
        while any(outcome is None for _, _, outcome in await self.rows()):  # noqa: ASYNC110 - in rows
            await asyncio.sleep(0.1)


@asynccontextmanager
async def ground(
    client: Client,
    stack: Stack,
    store: AsyncEngine,
    model: Path,
    agent: str,
    *,
    worker: bool = True,
    answers: Sequence[str] = ("abc", "abcd", "abcde"),
    rows: Sequence[dict[str, Any]] = tuple(sums(4)),
    **agentic: Any,
) -> AsyncIterator[Ground]:
    path = agent if ":" in agent else f"tests.support.agents:{agent}"
    chosen = {"agent_loop": "session", "agent": path, **agentic}
    async with gateway_site(client, stack, store, model, answers, rows=rows, agentic_rl=chosen) as site:
        config = await site_config(site)
        async with cpu_worker(client, store, None):
            if not worker:
                yield Ground(site, config)
                return
            async with agent_worker(client, store, site.stack):
                yield Ground(site, config)


async def site_config(site: GatewaySite) -> Any:
    from psrl.activities.store.runs import AdmittedRuns

    async with site.store.connect() as connection:
        return (await AdmittedRuns().get(connection, site.run_id)).config


async def test_what_agents_were_answered_is_what_the_group_has_token_for_token(
    temporal_client: Client, stack: Stack, store: AsyncEngine, model: Path
) -> None:
    async with ground(temporal_client, stack, store, model, "asks_three_times") as played:
        report = await played.play()
        (one,), (other,) = await played.branches(FIRST), await played.branches(SessionId("000000-t01"))
        given = {tuple(request.prompt_ids) for request in played.site.engine.requests}
        async with store.connect() as connection:
            prompt = await connection.scalar(select(Group.prompt_ids).where(Group.run_id == played.site.run_id))
        rows, sessions = await played.rows(), await played.sessions()
    assert (report.outcome, report.reason) == (GroupOutcome.COMPLETE, "")
    assert [len(branch.turns) for branch in (one, other)] == [3, 3]
    assert prompt == b"", "nothing is rendered that no agent says"
    contexts = {tuple(b.token_ids[: turn.prompt_tokens]) for b in (one, other) for turn in b.turns}
    assert contexts == given, "what the engine was given is what the store has before each turn"
    assert all(turn.token_ids in map(spoken, ["abc", "abcd", "abcde"]) for b in (one, other) for turn in b.turns)
    assert report.tokens == sum(len(turn.token_ids) for b in (one, other) for turn in b.turns)
    assert [(index, status, outcome["ended"]) for index, status, outcome in rows] == [
        (0, "scored", "finished"),
        (1, "scored", "finished"),
    ]
    assert sessions == dict.fromkeys([FIRST, "000000-t01"], (GROUP, "closed", "the agent is done"))


async def test_an_episode_that_is_played_anew_trains_on_nothing_of_the_first_attempt(
    temporal_client: Client, stack: Stack, store: AsyncEngine, model: Path
) -> None:
    async with ground(temporal_client, stack, store, model, "fails_the_first_time") as played:
        report = await played.play()
        rows, aside, sessions = await played.rows(), await played.rows(FIRST), await played.sessions()
        (before,), (after,) = await played.branches(FIRST), await played.branches(SECOND)
    assert report.outcome is GroupOutcome.COMPLETE
    assert [(index, status, outcome["ended"]) for index, status, outcome in rows] == [
        (0, "scored", "finished"),
        (1, "scored", "finished"),
    ]
    assert [(index, status, outcome["ended"]) for index, status, outcome in aside] == [(0, "aborted", "rollout_error")]
    assert {name: (group, status) for name, (group, status, _) in sessions.items()} == {
        FIRST: (FIRST, "closed"),
        SECOND: (GROUP, "closed"),
        "000000-t01": ("000000-t01", "closed"),
        "000000-t01.2": (GROUP, "closed"),
    }
    assert len(before.turns) == len(after.turns) == 1
    assert len(played.site.engine.requests) == 4


async def test_a_dropped_episode_is_not_played_anew_and_its_group_fails_by_that_reason(
    temporal_client: Client, stack: Stack, store: AsyncEngine, model: Path
) -> None:
    """Field report 86."""
    async with ground(temporal_client, stack, store, model, "asks_and_drops", retry_limit=5) as played:
        report = await played.play()
        rows, sessions = await played.rows(), await played.sessions()
    assert (report.outcome, "dropped: not worth it" in report.reason) == (GroupOutcome.FAILED, True)
    assert {(status, outcome["ended"]) for _, status, outcome in rows if outcome} == {("failed", "dropped")}
    assert set(sessions) <= {FIRST, "000000-t01"}


async def test_an_agent_past_its_limit_is_killed_and_its_session_closed(
    temporal_client: Client, stack: Stack, store: AsyncEngine, model: Path, hanging: Path
) -> None:
    limits = {"agent_timeout_s": 5, "retry_limit": 0}
    async with ground(temporal_client, stack, store, model, "hangs", **limits) as played:
        report = await played.play()
        await asyncio.to_thread(until_gone, hanging)
        await played.until_closed()
        rows = await played.rows()
    assert report.outcome is GroupOutcome.FAILED
    assert "trajectory_timeout: not done within 5 s, and killed" in report.reason
    assert {(status, outcome["ended"]) for _, status, outcome in rows if outcome} == {("failed", "trajectory_timeout")}


async def test_a_group_that_is_cancelled_leaves_no_agent_and_no_open_session(
    temporal_client: Client, stack: Stack, store: AsyncEngine, model: Path, hanging: Path
) -> None:
    async with ground(temporal_client, stack, store, model, "asks_and_hangs") as played:
        group = await played.begin()
        await asyncio.to_thread(until_hanging, hanging, 2)
        await group.cancel()
        await asyncio.to_thread(until_gone, hanging)
        await played.until_closed()
        await played.until_ended()
        rows, sessions = await played.rows(), await played.sessions()
    assert [(status, outcome["ended"]) for _, status, outcome in rows] == [("aborted", "aborted")] * 2
    assert {reason for _, _, reason in sessions.values()} == {"nobody needs it any more"}


async def test_an_episode_whose_worker_dies_is_played_anew_and_the_old_agent_reaches_nothing(
    temporal_client: Client, stack: Stack, store: AsyncEngine, model: Path, hanging: Path
) -> None:
    options = {"worker": False}
    async with ground(temporal_client, stack, store, model, "hangs_the_first_time", **options) as played:
        command = [sys.executable, "-m", "psrl.workers.cpu"]
        log = played.site.stack.home / "cpu.log"
        first = spawn(command, log)
        try:
            group = await played.begin()
            await asyncio.to_thread(until_hanging, hanging, 2)
            stop(first, signal.SIGKILL)
            await asyncio.to_thread(until_gone, hanging)
            async with agent_worker(temporal_client, store, played.site.stack):
                report = await group.result()
        finally:
            stop(first, signal.SIGKILL)
        sessions, rows = await played.sessions(), await played.rows()
    assert report.outcome is GroupOutcome.COMPLETE
    assert [status for _, status, _ in rows] == ["scored", "scored"]
    assert {name: status for name, (_, status, _) in sessions.items()} == dict.fromkeys(
        [FIRST, SECOND, "000000-t01", "000000-t01.2"], SessionStatus.CLOSED.value
    )
    assert sessions[FIRST] == (FIRST, "closed", "the attempt was given up")


async def test_mini_swe_agent_repairs_a_repository_and_what_it_was_answered_is_trained_on(
    temporal_client: Client, stack: Stack, store: AsyncEngine, model: Path, lab: Lab
) -> None:
    block = "```mswea_bash_command\n{}\n```"
    repairs = block.format("sed -i 's/text.count(.*)/len(text.split())/' wordcount.py")
    submits = block.format("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    answers = [repairs, submits, submits]  # one episode repairs it, the other says at once that it has
    options: Any = {"answers": answers, "rows": [next(tasks())] * 4, "max_concurrent_agents": 1}
    agent = "examples.mini_swe_agent.solve:solve"
    async with ground(temporal_client, stack, store, model, agent, **options) as played:
        report = await played.play()
        rows, given = await played.rows(), list(played.site.engine.requests)
        episodes = [await played.branches(SessionId(f"000000-t0{number}")) for number in range(2)]
    assert (report.outcome, report.reason) == (GroupOutcome.COMPLETE, "")
    said = sorted((outcome["reward"], outcome["info"]["ended"], outcome["info"]["steps"]) for _, _, outcome in rows)
    assert said == [(0.0, "Submitted", 1), (1.0, "Submitted", 2)]
    turns = [
        (branch.token_ids[: turn.prompt_tokens], turn.token_ids) for (branch,) in episodes for turn in branch.turns
    ]
    asked = zip(given, itertools.cycle(answers), strict=False)
    assert sorted(turns) == sorted((list(request.prompt_ids), spoken(text)) for request, text in asked)
    batch = BatchRequest(run_id=played.site.run_id, buffer=0, taken=(GROUP,))
    info = await StoreActivities(store).make_batch(batch)
    assert (info.trajectories, info.tokens) == (2, sum(len(ids) for _, ids in turns))
    update = await asyncio.to_thread(_trained, lab.life(), batch.run_id)
    assert update.grad_norm > 0
    assert lab.manifest(0, batch.run_id).shards != lab.manifest(1, batch.run_id).shards


def _trained(stages: Stages, run_id: RunId) -> UpdateStats:
    """One step on buffer 0."""
    stages.open(run_id)
    stages.log_probs(run_id, 0)
    stages.advantages(run_id, 0)
    update = stages.update(run_id, 0)
    stages.publish(run_id, 0)
    return update
