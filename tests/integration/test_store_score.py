"""Scoring against the real store: stored once, and a failure is never 0.0."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from psrl.activities.rewards.score import Rewards
from psrl.activities.store.records import reopen_run
from psrl.schemas.ids import GroupId
from psrl.schemas.messages.data import ReopenRun
from psrl.schemas.messages.rewards import Score, ScoreOutcome, ScoreRequest
from psrl.schemas.tables import Trajectory
from tests.support import rewards
from tests.support.runs import RUN, add_segment, admit, config_values, draw, finish, set_trajectory, sums, write_jsonl

pytestmark = pytest.mark.integration

GROUP = GroupId("000000")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    rewards.calls.clear()
    rewards.released.clear()
    yield
    rewards.released.set()


@contextmanager
def listening(engine: AsyncEngine, hear: Callable[[str], None]) -> Iterator[None]:
    def heard(connection: object, cursor: object, statement: str, *_: object) -> None:
        hear(statement)

    event.listen(engine.sync_engine, "before_cursor_execute", heard)
    try:
        yield
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", heard)


class ScoredRun:
    """A store with one group of four."""

    def __init__(self, engine: AsyncEngine, model: Path, folder: Path) -> None:
        self.engine, self._model, self._folder = engine, model, folder

    async def open(self, function: str, *answers: str, **reward: Any) -> None:
        """Admit a run with this reward and finish its trajectories with these answers."""
        train = write_jsonl(self._folder / "train.jsonl", sums(2))
        section = {"function": f"tests.support.rewards:{function}", "max_attempts": 1, **reward}
        await admit(self.engine, config_values(self._model, train, reward=section))
        await draw(self.engine, [0], trajectories=4)
        for index, answer in enumerate(answers):
            await finish(self.engine, GROUP, index, answer)

    async def score(self, *indices: int) -> tuple[Score, ...]:
        request = ScoreRequest(run_id=RUN, group_id=GROUP, indices=indices, episodes=4)
        with closing(Rewards(self.engine)) as scorer:
            return (await scorer.score(request)).scores

    async def stored(self) -> list[tuple[str, float | None, str]]:
        query = select(Trajectory.status, Trajectory.reward, Trajectory.reward_error).order_by(Trajectory.index)
        async with self.engine.connect() as connection:
            return [(row.status, row.reward, row.reward_error) for row in await connection.execute(query)]


@pytest.fixture
def run(store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path) -> ScoredRun:
    return ScoredRun(store, tiny_model_dir, tmp_path)


async def test_rewards_are_stored_with_the_time_and_come_in_order_of_index(run: ScoredRun) -> None:
    await run.open("length", "a", "", "abc")
    scores = await run.score(2, 0, 1)
    assert [(item.index, item.reward) for item in scores] == [(0, 1.0), (1, 0.0), (2, 3.0)]
    assert (await run.stored())[:3] == [("scored", 1.0, ""), ("scored", 0.0, ""), ("scored", 3.0, "")]


async def test_a_failed_reward_fails_its_trajectory_and_only_that(run: ScoredRun) -> None:
    await run.open("refuses_x", "1", "0", "x", "0")
    scores = await run.score(0, 1, 2, 3)
    assert [item.reward for item in scores] == [1.0, 0.0, None, 0.0]
    assert (await run.stored())[2] == ("failed", None, "ValueError: no x")


async def test_a_failure_whose_text_cannot_be_stored_is_stored_as_escapes(run: ScoredRun) -> None:
    await run.open("raises_what_cannot_be_stored", "a")
    (score,) = await run.score(0)
    assert score.error == r"ValueError: an answer with \x00 and \ud800 in it"
    assert (await run.stored())[0] == ("failed", None, score.error)


async def test_the_database_refuses_a_reward_for_a_failed_trajectory(run: ScoredRun) -> None:
    await run.open("refuses_x", "x")
    await run.score(0)
    with pytest.raises(IntegrityError, match="reward_only_when_scored"):
        await set_trajectory(run.engine, GROUP, 0, reward=0.0)


async def test_a_reward_that_was_repaired_counts_when_the_run_is_resumed(
    store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a process that has judged with the old one."""
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "reward_of_the_user.py"
    code.write_text("def score(sample):\n    raise ValueError('not yet')\n")
    train = write_jsonl(tmp_path / "train.jsonl", sums(2))
    section = {"function": "reward_of_the_user:score", "max_attempts": 1}
    admission = await admit(store, config_values(tiny_model_dir, train, reward=section))
    await draw(store, [0], trajectories=2)
    judge, scores = Rewards(store), []
    for index in range(2):
        await finish(store, GROUP, index, "a")
        request = ScoreRequest(run_id=RUN, group_id=GROUP, indices=(index,), episodes=4)
        scores += (await judge.score(request)).scores
        code.write_text("def score(sample):\n    return 1.0\n")
        await reopen_run(store, ReopenRun(run_id=RUN, admission=admission, workflow_run_id="resumed"))
    assert [item.reward for item in scores] == [None, 1.0]


async def test_a_stored_outcome_is_returned_not_computed_again(run: ScoredRun) -> None:
    await run.open("counted", "a", "b")
    first = await run.score(0)
    assert await run.score(0, 1) == (*first, Score(index=1, outcome=ScoreOutcome.SCORED, reward=1.0))
    assert rewards.calls == ["a", "b"]


async def test_a_stored_failure_is_returned_not_tried_again(run: ScoredRun) -> None:
    await run.open("raises", "a")
    assert await run.score(0) == await run.score(0)
    assert rewards.calls == ["a"]


async def test_a_hanging_reward_fails_alone(run: ScoredRun) -> None:
    await run.open("hangs_on_x", "a", "x", "b", timeout_s=0.3)
    assert [item.reward for item in await run.score(0, 1, 2)] == [1.0, None, 1.0]
    assert (await run.stored())[1] == ("failed", None, "no result within reward.timeout_s=0.3")


async def test_a_reward_that_blocks_its_loop_stops_no_heartbeat_and_raises_an_alarm(
    run: ScoredRun, caplog: pytest.LogCaptureFixture
) -> None:
    """Field report 8. It blocks until two heartbeats have come: were they stopped, it would run out of time instead."""
    await run.open("blocks_on_x_async", "x", timeout_s=60)
    environment, beats = ActivityEnvironment(), 0

    def beat(*_: object) -> None:
        nonlocal beats
        beats += bool(rewards.hanging)
        if beats == 2:
            rewards.released.set()

    environment.on_heartbeat = beat
    request = ScoreRequest(run_id=RUN, group_id=GROUP, indices=(0,), episodes=4)
    result = await environment.run(Rewards(run.engine).score, request)
    assert [item.reward for item in result.scores] == [1.0]
    assert beats >= 2
    # On a busy machine loops of other functions may be late, too, and this one more than once.
    alarms = [record for record in caplog.records if "the async reward blocked its event loop" in record.message]
    assert {alarm.levelname for alarm in alarms} == {"ERROR"}


async def test_a_cancelled_score_stores_nothing(run: ScoredRun) -> None:
    await run.open("hangs_on_x", "x", timeout_s=30)
    environment = ActivityEnvironment()
    beating = asyncio.Event()
    environment.on_heartbeat = lambda *_: beating.set()
    request = ScoreRequest(run_id=RUN, group_id=GROUP, indices=(0,), episodes=4)
    task = asyncio.ensure_future(environment.run(Rewards(run.engine).score, request))
    await asyncio.wait_for(beating.wait(), 10)
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await run.stored())[0] == ("finished", None, "")


async def test_a_reward_of_conversations_gets_the_messages_of_the_prompt(
    store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path
) -> None:
    messages = [{"role": "user", "content": "3+4?"}]
    row = {"prompt": messages, "reward_model": {"ground_truth": "7"}, "extra_info": {"index": 4}, "level": "easy"}
    train = write_jsonl(tmp_path / "train.jsonl", [row, row])
    section = {"function": "tests.unit.activities.rewards.test_shapes:judges_a_conversation"}
    await admit(store, config_values(tiny_model_dir, train, reward=section))
    await draw(store, [0], trajectories=1)
    await finish(store, GROUP, 0, "7")
    request = ScoreRequest(run_id=RUN, group_id=GROUP, indices=(0,), episodes=4)
    with closing(Rewards(store)) as scorer:
        (score,) = (await scorer.score(request)).scores
    assert score.reward == 1.0


async def test_a_group_reward_sees_all_answers_at_once(run: ScoredRun) -> None:
    await run.open("group_rank", "ccc", "a", "bb", scope="group")
    assert [item.reward for item in await run.score(0, 1, 2)] == [2.0, 0.0, 1.0]


async def test_the_answer_is_all_segments_of_all_turns_in_order(run: ScoredRun) -> None:
    await run.open("counted")
    for turn, seq, text in ((1, 0, "c"), (0, 1, "b"), (0, 0, "a")):
        await add_segment(run.engine, GROUP, 0, text, turn=turn, seq=seq)
    await set_trajectory(run.engine, GROUP, 0, status="finished")
    await run.score(0)
    assert rewards.calls == ["abc"]


async def test_an_aborted_trajectory_gets_no_reward(run: ScoredRun) -> None:
    await run.open("counted", "a")
    await set_trajectory(run.engine, GROUP, 0, status="aborted")
    (score,) = await run.score(0)
    assert (score.outcome, score.reward, score.error) == (ScoreOutcome.FAILED, None, "trajectory aborted")
    assert rewards.calls == []


async def test_scoring_what_has_not_finished_or_is_not_there_is_a_defect(run: ScoredRun) -> None:
    await run.open("counted")
    with pytest.raises(ApplicationError, match=r"trajectories \[0\] are to be scored before they have finished"):
        await run.score(0)
    with pytest.raises(ApplicationError, match=r"has no trajectories \[9\]"):
        await run.score(9)


async def test_of_two_attempts_at_the_same_time_both_report_what_is_stored(run: ScoredRun) -> None:
    await run.open("numbered", "a")
    first, second = await asyncio.gather(run.score(0), run.score(0))
    assert first == second
    assert (await run.stored())[0] == ("scored", first[0].reward, "")


async def test_scoring_reads_once_and_writes_once(run: ScoredRun) -> None:
    await run.open("length", "a", "b", "c")
    scorer = Rewards(run.engine)
    await scorer.score(
        ScoreRequest(run_id=RUN, group_id=GROUP, indices=(0,), episodes=4)
    )  # the run's configuration is kept
    statements: list[str] = []
    with listening(run.engine, statements.append):
        await scorer.score(ScoreRequest(run_id=RUN, group_id=GROUP, indices=(1, 2), episodes=4))
    assert [statement.split()[0] for statement in statements] == ["SELECT", "UPDATE"]


async def test_several_rewards_are_stored_as_their_sum_and_each_under_its_name(
    run: ScoredRun, tiny_model_dir: Path, tmp_path: Path
) -> None:
    functions = {
        "strict": {"function": "tests.support.rewards:refuses_x", "weight": 2},
        "shaped": {"function": "tests.support.rewards:shaped"},
        "long": {"function": "overlong", "kwargs": {"max_response_length": 4, "buffer_length": 2}},
    }
    train = write_jsonl(tmp_path / "train.jsonl", sums(2))
    reward = {"function": "", "functions": functions, "max_attempts": 1}
    await admit(run.engine, config_values(tiny_model_dir, train, reward=reward))
    await draw(run.engine, [0], trajectories=4)
    for index, answer in enumerate(("100", "x")):
        await finish(run.engine, GROUP, index, answer)
    await run.score(0, 1)
    stored = await run.stored()
    assert stored[0] == ("scored", pytest.approx(2 * 100 + 0.7 - 0.5), "")
    assert stored[1] == ("failed", None, "strict: ValueError: no x")
    query = select(Trajectory.reward_metrics).order_by(Trajectory.index)
    async with run.engine.connect() as connection:
        metrics = list(await connection.scalars(query))
    assert metrics[0] == pytest.approx({"strict": 100, "shaped": 0.7, "shaped/acc": 1, "long": -0.5, "long/hit": 1})
    assert metrics[1] == {}
