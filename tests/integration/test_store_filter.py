"""Group filters against the real store: the verdict comes with the score that completes the group."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.data.dataset import DatasetCache
from psrl.activities.data.restore import Restore
from psrl.activities.filters.scored import lock_group
from psrl.activities.rewards.score import Rewards
from psrl.schemas.ids import GroupId
from psrl.schemas.messages.data import Purpose, RestoreRequest
from psrl.schemas.messages.rewards import GroupVerdict, ScoreRequest, ScoreResult, Verdict
from psrl.schemas.tables import Group, Trajectory
from tests.support import rewards
from tests.support.runs import RUN, admit, config_values, draw, finish, set_trajectory, sums, write_jsonl

pytestmark = pytest.mark.integration

G0, G1, G2, G3 = (GroupId(f"{number:06d}") for number in range(4))
KEPT = GroupVerdict(verdict=Verdict.KEEP)
FAILURES = ("0", "00", "000", "0000")
"""Of different length, hence of different reward."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    rewards.calls.clear()


class FilteredRun:
    """Groups of two that count and two spare ones."""

    def __init__(self, engine: AsyncEngine, model: Path, folder: Path) -> None:
        self.engine, self._model, self._folder = engine, model, folder

    async def open(self, filtered: str, metric: str = "score", function: str = "shaped", groups: int = 1) -> None:
        train = write_jsonl(self._folder / "train.jsonl", sums(4))
        sections: dict[str, Any] = {
            "reward": {"function": f"tests.support.rewards:{function}", "max_attempts": 1},
            "psrl": {"group_post_process": {"enable": True, "name": filtered}},
            "algorithm": {"filter_groups": {"metric": metric}},
        }
        await admit(self.engine, config_values(self._model, train, **sections))
        await draw(self.engine, [0] * groups, trajectories=4)

    async def finish(self, *answers: str, group: GroupId = G0) -> None:
        for index, answer in enumerate(answers):
            await finish(self.engine, group, index, answer)

    async def score(self, *indices: int, group: GroupId = G0) -> ScoreResult:
        return await Rewards(self.engine).score(ScoreRequest(run_id=RUN, group_id=group, indices=indices, episodes=4))

    async def column(self, column: Any) -> list[Any]:
        async with self.engine.connect() as connection:
            return list(await connection.scalars(select(column).order_by(Trajectory.group_id, Trajectory.index)))


@pytest.fixture
def run(store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path) -> FilteredRun:
    return FilteredRun(store, tiny_model_dir, tmp_path)


async def test_what_a_reward_returns_beside_its_score_is_stored_and_stays_in_the_store(run: FilteredRun) -> None:
    await run.open("no_filter")
    await run.finish("1", "00")
    result = await run.score(0, 1)
    assert [score.reward for score in result.scores] == pytest.approx([0.9, -0.2])
    assert [score.metrics for score in result.scores] == [{}, {}]
    assert (await run.column(Trajectory.reward_metrics))[:2] == [{"acc": 1.0}, {"acc": 0.0}]


async def test_failures_of_different_length_are_dropped_by_their_accuracy(run: FilteredRun) -> None:
    await run.open("dynamic_sampling_filter", "acc")
    await run.finish(*FAILURES)
    assert (await run.score(0)).verdict is None
    dropped = GroupVerdict(verdict=Verdict.DROP, reason="all 2 values of acc are 0")
    assert (await run.score(1)).verdict == dropped


async def test_the_same_failures_differ_by_their_reward(run: FilteredRun) -> None:
    await run.open("dynamic_sampling_filter")
    await run.finish(*FAILURES)
    assert (await run.score(0, 1)).verdict == KEPT


async def test_a_verdict_asked_for_again_is_the_same_and_computes_no_reward(run: FilteredRun) -> None:
    await run.open("dynamic_sampling_filter", "acc")
    await run.finish("1", "0")
    assert (await run.score(0, 1)).verdict == KEPT
    assert (await run.score(1)).verdict == KEPT
    assert sorted(rewards.calls) == ["0", "1"]


async def test_the_verdict_is_on_those_that_would_be_trained_on_not_on_a_late_spare_one(run: FilteredRun) -> None:
    await run.open("dynamic_sampling_filter", "acc")
    await run.finish("0", "00", "1")
    assert (await run.score(1)).verdict is None
    for index in (0, 2):
        verdict = (await run.score(index)).verdict
        assert verdict is not None
        assert verdict.verdict is Verdict.DROP


async def test_of_calls_at_the_same_time_one_at_least_has_the_verdict(run: FilteredRun) -> None:
    await run.open("dynamic_sampling_filter", "acc")
    await run.finish("0", "1")
    verdicts = [result.verdict for result in await asyncio.gather(run.score(0), run.score(1))]
    assert KEPT in verdicts
    assert set(verdicts) <= {KEPT, None}


async def test_scores_of_one_group_are_stored_in_the_order_of_their_times(run: FilteredRun) -> None:
    """Else a score with an earlier time could appear later and change which are the first N."""
    await run.open("dynamic_sampling_filter", "acc")
    await run.finish("0", "00")
    async with run.engine.begin() as first:
        await lock_group(first, RUN, G0)
        second = asyncio.create_task(run.score(1))
        async with asyncio.timeout(30):
            while not await _waits_for_a_lock(run.engine):  # noqa: ASYNC110  (the database sends no event)
                await asyncio.sleep(0.05)
        await first.execute(
            update(Trajectory)
            .where(Trajectory.group_id == G0, Trajectory.index == 0)
            .values(status="scored", reward=0.0, reward_metrics={"acc": 0}, scored_at=text("clock_timestamp()"))
        )
    verdict = (await second).verdict
    assert verdict is not None
    times = await run.column(Trajectory.scored_at)
    assert times[0] < times[1]


async def _waits_for_a_lock(engine: AsyncEngine) -> bool:
    async with engine.connect() as connection:
        return bool(await connection.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))


async def test_a_reward_that_lacks_what_the_filter_compares_fails_by_name(run: FilteredRun) -> None:
    await run.open("dynamic_sampling_filter", "acc", function="sometimes_without_acc")
    await run.finish("x", "0")
    result = await run.score(0, 1)
    said = "returned no number 'acc', which algorithm.filter_groups.metric needs, only score, style"
    assert [score.error for score in result.scores] == [said, ""]
    assert result.verdict is None, "one of two is scored: the group is not complete"


@pytest.mark.parametrize(
    ("name", "verdict", "reason"),
    [
        ("all_long", Verdict.DROP, "the shortest answer has 3 tokens"),
        ("raises", Verdict.FAILED, "group filter tests.support.filters:raises failed: LookupError"),
    ],
)
async def test_a_filter_of_the_user_judges_what_the_store_holds(
    run: FilteredRun, name: str, verdict: Verdict, reason: str
) -> None:
    await run.open(f"tests.support.filters:{name}")
    await run.finish("100", "0000")
    found = (await run.score(0, 1)).verdict
    assert found is not None
    assert found.verdict is verdict
    assert found.reason.startswith(reason)


async def test_validation_answers_are_not_filtered_and_need_no_metric(run: FilteredRun) -> None:
    await run.open("dynamic_sampling_filter", "acc", function="sometimes_without_acc")
    async with run.engine.begin() as connection:
        await connection.execute(update(Group).values(purpose=Purpose.VALIDATION))
    await run.finish("x", "x")
    result = await run.score(0, 1)
    assert [score.reward for score in result.scores] == [1.0, 1.0]
    assert result.verdict is None


async def test_a_resumed_run_keeps_of_what_was_complete_only_what_passes_its_filter(run: FilteredRun) -> None:
    await run.open("dynamic_sampling_filter", "acc", groups=4)
    await run.finish("1", "0", group=G0)
    await run.finish(*FAILURES, group=G1)
    await run.finish("1", group=G2)
    await run.finish("000", "1", group=G3)
    for group in (G3, G1, G0):
        await run.score(0, 1, group=group)
    await run.score(0, group=G2)
    restored = await Restore(run.engine, DatasetCache(), None).restore_run(RestoreRequest(run_id=RUN))
    assert [kept.group_id for kept in restored.kept] == [G3, G0]
    assert restored.unfinished == (G1, G2)


async def test_without_a_filter_everything_that_was_complete_is_kept(run: FilteredRun) -> None:
    await run.open("no_filter", groups=2)
    for group in (G1, G0):
        await run.finish(*FAILURES, group=group)
        await run.score(0, 1, group=group)
    await set_trajectory(run.engine, G0, 2, status="aborted")
    restored = await Restore(run.engine, DatasetCache(), None).restore_run(RestoreRequest(run_id=RUN))
    assert [kept.group_id for kept in restored.kept] == [G1, G0]
