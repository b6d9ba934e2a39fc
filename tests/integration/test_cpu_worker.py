"""The CPU worker as a process: it serves its queue, and ends cleanly when asked to."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import ActivityFailureError, Client
from temporalio.exceptions import ApplicationError

from psrl.activities import signatures
from psrl.schemas.ids import CPU_QUEUE, GroupId
from psrl.schemas.messages.data import AdmitRequest, DrawRequest
from psrl.schemas.messages.rewards import ScoreRequest
from psrl.schemas.stack import HOME_VARIABLE, STACK_FILE, Stack
from tests.support.runs import RUN, config_values, finish, sums, write_jsonl

pytestmark = pytest.mark.integration

Launch = Callable[[Stack], "subprocess.Popen[str]"]


@pytest.fixture
def launch() -> Iterator[Launch]:
    started: list[subprocess.Popen[str]] = []

    def start(stack: Stack) -> "subprocess.Popen[str]":
        environment = {**os.environ, HOME_VARIABLE: str(stack.home), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "psrl.workers.cpu"]
        root = Path(__file__).parents[2]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=root)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


async def call(client: Client, activity: Any, request: Any, name: str) -> Any:
    """One activity, without a workflow around it. The heartbeat says soon that a worker is dead."""
    return await client.execute_activity(
        activity,
        request,
        id=name,
        task_queue=CPU_QUEUE,
        schedule_to_close_timeout=timedelta(seconds=200),
        heartbeat_timeout=timedelta(seconds=10),
    )


async def test_a_run_is_admitted_drawn_and_scored_over_the_queue(
    launch: Launch, stack: Stack, temporal_client: Client, store: AsyncEngine, tiny_model_dir: Path
) -> None:
    worker = launch(stack)
    values = config_values(tiny_model_dir, write_jsonl(stack.home / "train.jsonl", sums(3)))
    request = AdmitRequest(run_id=RUN, config=values, workflow_run_id="first")
    assert (await call(temporal_client, signatures.admit_run, request, "admit")).prompts == 3
    drawn = await call(
        temporal_client,
        signatures.draw_groups,
        DrawRequest(run_id=RUN, first=0, tags=(0,), places=(0,), trajectories=2),
        "draw",
    )
    (group,) = drawn.groups
    await finish(store, group, 0, "abc")
    scored = await call(
        temporal_client, signatures.score, ScoreRequest(run_id=RUN, group_id=group, indices=(0,), episodes=2), "score"
    )
    assert scored.scores[0].reward == 3.0

    other = AdmitRequest(run_id=RUN, config=values, workflow_run_id="second")
    with pytest.raises(ActivityFailureError) as caught:
        await call(temporal_client, signatures.admit_run, other, "admit-again")
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "RunExists"

    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0


@pytest.mark.timeout(300)
async def test_a_reward_that_ends_its_host_costs_its_own_trajectory_and_no_other(
    launch: Launch, stack: Stack, temporal_client: Client, store: AsyncEngine, tiny_model_dir: Path
) -> None:
    """Field report 208."""
    worker = launch(stack)
    function = "tests.support.hostile_rewards:crashes_on_x"
    train = write_jsonl(stack.home / "train.jsonl", sums(4))
    values = config_values(tiny_model_dir, train, reward={"function": function, "max_attempts": 2})
    admit_request = AdmitRequest(run_id=RUN, config=values, workflow_run_id="first")
    await call(temporal_client, signatures.admit_run, admit_request, "admit")
    drawing = DrawRequest(run_id=RUN, first=0, tags=(0, 0), places=(0, 1), trajectories=3)
    groups = (await call(temporal_client, signatures.draw_groups, drawing, "draw")).groups
    for group, answers in zip(groups, (("a", "x", "abc"), ("ab", "abcd", "x")), strict=True):
        for index, answer in enumerate(answers):
            await finish(store, group, index, answer)

    scoring = asyncio.gather(*(call(temporal_client, signatures.score, scores(group), group) for group in groups))
    assert await asyncio.to_thread(worker.wait, 100) == -signal.SIGSEGV
    successor = launch(stack)
    scored = await scoring
    assert [[one.reward for one in result.scores] for result in scored] == [[1.0, None, 3.0], [2.0, 4.0, None]]
    assert scored[0].scores[1].error == "it ended the process that runs it (SIGSEGV)"

    # From here on the function has processes, whatever is scored for the first time.
    more = DrawRequest(run_id=RUN, first=2, tags=(0,), places=(2,), trajectories=1)
    (group,) = (await call(temporal_client, signatures.draw_groups, more, "draw-more")).groups
    await finish(store, group, 0, "x")
    failed = await call(temporal_client, signatures.score, scores(group, 1), group)
    assert failed.scores[0].reward is None
    assert successor.poll() is None


def scores(group: GroupId, trajectories: int = 3) -> ScoreRequest:
    return ScoreRequest(run_id=RUN, group_id=group, indices=tuple(range(trajectories)), episodes=trajectories)


def test_with_a_store_of_another_release_it_refuses_to_work(launch: Launch, stack: Stack, postgres_server: Any) -> None:
    with postgres_server.database("template0") as empty:
        (stack.home / STACK_FILE).write_text(stack.model_copy(update={"postgres_url": empty}).model_dump_json())
        worker = launch(stack)
        _, errors = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "is at revision none (empty), this release needs" in errors
