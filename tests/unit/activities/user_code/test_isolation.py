"""Functions in processes of their own: what ends a process, or holds it, costs one call."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from psrl.activities.rewards.compute import score_samples
from psrl.activities.rewards.judge import recipe
from psrl.activities.user_code import process
from psrl.activities.user_code.calls import UserCalls
from psrl.activities.user_code.prepared import Recipe
from psrl.schemas.config import RewardSection
from psrl.schemas.messages.rewards import RewardSample, Score, ScoreOutcome
from tests.support import hostile_rewards


def sample(text: str) -> RewardSample:
    return RewardSample(
        data_source="", prompt_text="", response_text=text, ground_truth=None, extra={}, prompt_ids=[], response_ids=[]
    )


class Opened:
    """One function's calls, as a run has them."""

    def __init__(self, name: str, **limits: Any) -> None:
        values = {"function": f"tests.support.hostile_rewards:{name}", "max_attempts": 1, **limits}
        self.reward = RewardSection.model_validate(values)
        self.calls = UserCalls("reward", recipe(self.reward), self.reward)

    async def score(self, *texts: str, apart: bool = False) -> list[Score]:
        samples = [sample(text) for text in texts]
        return await score_samples(self.calls, self.reward, range(len(texts)), samples, apart=apart)


@pytest.fixture
async def opened() -> AsyncIterator[Any]:
    every: list[Opened] = []

    def open_calls(name: str, **limits: Any) -> Opened:
        every.append(Opened(name, **{"isolation": "process", **limits}))
        return every[-1]

    yield open_calls
    for one in every:
        one.calls.close()


@pytest.mark.parametrize(("name", "how"), [("crashes_on_x", "SIGSEGV"), ("exits_on_x", "exit status 3")])
async def test_a_function_that_ends_its_process_costs_its_own_call_and_no_other(
    opened: Any, name: str, how: str
) -> None:
    scores = await opened(name, processes=2, max_attempts=2).score("a", "x", "abc", "x", "ab")
    assert [one.reward for one in scores] == [1.0, None, 3.0, None, 2.0]
    assert scores[1].error == f"it ended the process that runs it ({how})"


async def test_a_call_past_its_limit_is_killed_even_while_it_holds_the_interpreter(opened: Any) -> None:
    run = opened("holds_the_interpreter_on_x", timeout_s=2, processes=1)
    scores = await run.score("x", "a")
    assert [one.outcome for one in scores] == [ScoreOutcome.FAILED, ScoreOutcome.SCORED]
    assert scores[0].error == "no result within reward.timeout_s=2"
    assert run.calls.abandoned == 0


async def test_no_more_calls_are_made_at_once_than_the_function_can_stand(tmp_path: Path) -> None:
    reward = RewardSection.model_validate({"function": "mine:f", "isolation": "process", "processes": 2})
    calls = UserCalls("reward", Recipe(hostile_rewards.Alone, ()), reward)
    try:
        seen = await asyncio.gather(*(calls.call(tmp_path) for _ in range(2)))
    finally:
        calls.close()
    assert seen == [1, 1]


SPAWNS = """
import multiprocessing

def length(text):
    return len(text)

def score(sample):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(length, [sample.response_text])[0]
"""


async def test_a_function_of_a_file_may_call_others_of_it_in_processes_that_it_spawns(
    opened: Any, tmp_path: Path
) -> None:
    file = tmp_path / "judge_that_spawns.py"
    file.write_text(SPAWNS)
    (found,) = await opened("", function=f"{file}:score").score("abc")
    assert (found.reward, found.error) == (3.0, "")


@pytest.mark.parametrize("name", ["starts_a_child", "starts_a_session"])
async def test_what_a_killed_call_has_started_ends_with_it(opened: Any, tmp_path: Path, name: str) -> None:
    told = tmp_path / "pid"
    (late,) = await opened(name, timeout_s=3).score(str(told))
    assert late.outcome is ScoreOutcome.FAILED
    await _gone(int(told.read_text()))


async def _gone(pid: int) -> None:
    """With its last thread: a zombie whose threads are still ending is not given back."""
    while not _has_ended(pid):  # noqa: ASYNC110  (processes set no asyncio event)
        await asyncio.sleep(0.02)


def _has_ended(pid: int) -> bool:
    try:
        one = psutil.Process(pid)
        return bool(one.status() == psutil.STATUS_ZOMBIE and one.num_threads() == 1)
    except psutil.NoSuchProcess:
        return True


async def test_memory_is_limited_and_said_so(opened: Any) -> None:
    scores = await opened("allocates_on_x", memory_gb=0.25).score("x", "a")
    assert (scores[0].error, scores[1].reward) == ("MemoryError", 1.0)
    assert (await opened("allocates_on_x", memory_gb=None).score("x"))[0].reward == float(1 << 29)


async def test_a_process_that_keeps_memory_from_call_to_call_is_replaced_before_it_fails(opened: Any) -> None:
    run = opened("leaks", memory_gb=0.2, processes=1)
    pids = [(await run.score("a"))[0].reward for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


async def test_a_process_that_dies_between_two_calls_is_replaced(opened: Any) -> None:
    run = opened("pid", processes=1)
    (first,) = await run.score("a")
    assert first.reward is not None
    os.kill(int(first.reward), signal.SIGKILL)
    await _gone(int(first.reward))
    (second,) = await run.score("a")
    assert second.reward not in (None, first.reward)


async def test_as_many_processes_as_there_are_calls_at_a_time_up_to_the_limit(opened: Any) -> None:
    run = opened("pid", processes=2)
    assert len({one.reward for one in await run.score("a", "b", "c", "d", "e")}) == 2


@pytest.mark.parametrize(("name", "left"), [("forks_on_x", 0.0), ("forgets_its_alarm_on_x", 1.0)])
async def test_what_a_call_leaves_behind_does_not_reach_the_next_one(opened: Any, name: str, left: float) -> None:
    """A copy of the process that would answer too, or an alarm."""
    run = opened(name, processes=1)
    assert [(await run.score(text))[0].reward for text in ("x", "abc", "ab")] == [left, 3.0, 2.0]


def test_a_process_ends_with_the_one_that_started_it_also_in_the_middle_of_a_call(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    code = f"""
from psrl.activities.rewards.judge import Question, recipe
from psrl.activities.user_code.process import UserProcess
from psrl.schemas.config import RewardSection
from tests.unit.activities.user_code.test_isolation import sample
process = UserProcess(recipe(RewardSection(function="tests.support.hostile_rewards:starts_a_child")))
process.start()
process.ask(Question((sample({str(told)!r}),)), 60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        while not told.exists() or not told.read_text():
            assert parent.poll() is None
            time.sleep(0.02)
        (child,) = psutil.Process(parent.pid).children()
    finally:
        parent.kill()
        parent.wait()
    child.wait()
    asyncio.run(_gone(int(told.read_text())))


async def test_where_no_process_can_be_had_the_score_fails_and_says_so(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened("pid")
    await run.calls.about()
    monkeypatch.setattr(process, "COMMAND", ["/no/such/interpreter"])
    (failed,) = await run.score("a")
    assert failed.error.startswith("no process could be started: FileNotFoundError")


async def test_a_cancelled_call_ends_its_process(opened: Any, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    task = asyncio.create_task(opened("starts_a_child").score(str(told)))
    while not told.exists() or not told.read_text():  # noqa: ASYNC110  (written by another process)
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _gone(int(told.read_text()))


@pytest.mark.parametrize("name", ["limited", "limited_by_a_helper"])
async def test_a_function_that_is_seen_to_use_an_alarm_gets_a_process(opened: Any, name: str) -> None:
    run = opened(name, isolation="auto")
    assert (await run.score("abc"))[0].reward == 3.0
    assert run.calls.apart


async def test_an_alarm_that_nobody_saw_is_noticed_and_its_wrong_answer_not_believed(opened: Any) -> None:
    """Field report 203: the function takes Python's refusal for a wrong answer and returns 0.0."""
    run = opened("limited_out_of_sight", isolation="auto")
    assert not run.calls.apart
    assert (await run.score("abc"))[0].reward == 3.0
    assert run.calls.apart


async def test_an_alarm_in_a_thread_is_a_failure_where_threads_were_asked_for(opened: Any) -> None:
    (failed,) = await opened("limited_out_of_sight", isolation="thread").score("abc")
    assert failed.outcome is ScoreOutcome.FAILED
    assert failed.error.startswith("it uses signal.signal, which is for a process of its own")
    assert failed.error.endswith("allowed: reward.isolation=auto or process")


async def test_a_function_that_ends_the_process_it_was_put_in_has_processes_from_then_on(opened: Any) -> None:
    """What a scoring task does that is repeated: the first one may have ended its host."""
    run = opened("crashes_on_x", isolation="auto")
    assert [one.reward for one in await run.score("a", "x", apart=True)] == [1.0, None]
    assert run.calls.apart
    assert [one.reward for one in await run.score("x", "ab")] == [None, 2.0]
