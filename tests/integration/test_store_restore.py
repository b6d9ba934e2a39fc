"""Where an ended run is resumed (L12), by the real activity from the rows that real activities wrote: no place of the
data is left out or drawn twice, above all around the end of an epoch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.exceptions import ApplicationError

from psrl.activities.data.dataset import DatasetCache
from psrl.activities.data.draw import Draw
from psrl.activities.data.restore import Restore
from psrl.activities.store.activities import StoreActivities
from psrl.schemas.ids import GroupId, training_group
from psrl.schemas.messages.data import DrawRequest, KeptGroup, Restored, RestoreRequest
from psrl.schemas.messages.run import RunPhase
from psrl.schemas.messages.training import BatchRequest
from psrl.schemas.status import GROUP_EXITS, GroupStatus
from psrl.schemas.tables import Group, Run, StepMetric
from tests.support.runs import RUN, admit, config_values, finish, finish_scored, sums, write_jsonl
from tests.support.steps import at, step_report

pytestmark = pytest.mark.integration

PROMPTS = 3
TRAINED, ABORTED, LIVE = GroupStatus.TRAINED, GroupStatus.ABORTED, GroupStatus.LIVE


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "train.jsonl", sums(PROMPTS))


@pytest.fixture
async def run(store: AsyncEngine, tiny_model_dir: Path, train: Path) -> AsyncEngine:
    """A run over three prompts an epoch, with N 2 and batches of 2."""
    trainer = {"total_epochs": 4, "total_training_steps": None}
    await admit(store, config_values(tiny_model_dir, train, trainer=trainer))
    return store


async def drawn(run: AsyncEngine, *groups: tuple[int, GroupStatus]) -> None:
    """In this order: the place of each group, and what became of it."""
    places = tuple(place for place, _ in groups)
    request = DrawRequest(run_id=RUN, first=0, tags=(0,) * len(groups), places=places, trajectories=2)
    await Draw(run, DatasetCache()).draw_groups(request)
    async with run.begin() as connection:
        for number, (_, status) in enumerate(groups):
            row = update(Group).where(Group.group_id == training_group(number))
            await connection.execute(row.values(status=status, reason="" if status in (TRAINED, LIVE) else "why"))


async def stepped(run: AsyncEngine, buffers: Sequence[int], reward: float = 0.5) -> None:
    """Steps that are recorded."""
    async with run.begin() as connection:
        for buffer in buffers:
            report = step_report(buffer, run=RUN, reward=reward + buffer)
            row = {"run_id": RUN, "buffer": buffer, "metrics": report.model_dump(mode="json")}
            await connection.execute(insert(StepMetric), {**row, "train_started_at": at(0), "published_at": at(1)})


async def set_run(run: AsyncEngine, **values: Any) -> None:
    async with run.begin() as connection:
        await connection.execute(update(Run).values(**values))


async def restore(run: AsyncEngine, accept_changed_data: bool = False) -> Restored:
    request = RestoreRequest(run_id=RUN, accept_changed_data=accept_changed_data)
    return await Restore(run, DatasetCache(), None).restore_run(request)


@pytest.mark.parametrize(
    ("places", "following"),
    [
        ([], 0),
        ([0], 1),
        ([0, 1], 2),
        ([0, 1, 2], 3),
        ([0, 1, 2, 3], 4),
        ([0, 1, 2, 3, 4], 5),
        ([0, 1, 2, 3, 4, 5], 6),
    ],
)
async def test_the_place_after_the_farthest_drawn_is_next_within_an_epoch_and_at_its_end(
    run: AsyncEngine, places: list[int], following: int
) -> None:
    await drawn(run, *((place, TRAINED) for place in places))
    restored = await restore(run)
    assert (restored.next_place, restored.redraw, restored.next_group) == (following, (), len(places))


async def test_the_last_prompts_of_an_epoch_that_were_cut_short_are_drawn_again(run: AsyncEngine) -> None:
    await drawn(run, (0, TRAINED), (1, ABORTED), (2, LIVE), (3, TRAINED), (4, LIVE))
    restored = await restore(run)
    assert (restored.next_place, restored.redraw) == (5, (1, 2, 4))
    assert restored.unfinished == (training_group(2), training_group(4))
    assert restored.dropped == {"aborted": 1}


async def test_a_place_that_was_drawn_again_and_then_trained_or_explained_is_done(run: AsyncEngine) -> None:
    statuses = [TRAINED, GroupStatus.FILTERED, ABORTED]
    await drawn(run, *((place, ABORTED) for place in range(PROMPTS)), *enumerate(statuses))
    restored = await restore(run)
    assert (restored.next_place, restored.redraw, restored.next_group) == (3, (2,), 6)
    assert restored.dropped == {"aborted": 4, "filtered": 1}


@pytest.mark.parametrize("status", [status for status in GROUP_EXITS if status is not ABORTED])
async def test_a_group_that_left_for_good_is_counted_and_not_drawn_again(run: AsyncEngine, status: GroupStatus) -> None:
    await drawn(run, (0, status), (1, TRAINED))
    restored = await restore(run)
    assert (restored.next_place, restored.redraw, restored.dropped) == (2, (), {status.value: 1})


@pytest.mark.parametrize(("places", "epoch"), [(2, 1), (3, 1), (4, 2), (6, 2)])
async def test_changed_data_begin_with_the_next_whole_epoch_and_skip_none(
    run: AsyncEngine, train: Path, places: int, epoch: int
) -> None:
    await drawn(run, *((place, ABORTED) for place in range(places)))
    write_jsonl(train, sums(PROMPTS + 2))
    with pytest.raises(ApplicationError, match="--accept-changed-data"):
        await restore(run)
    restored = await restore(run, accept_changed_data=True)
    assert (restored.first_epoch, restored.redraw) == (epoch, ())
    assert restored.next_place == epoch * (PROMPTS + 2)
    assert restored.admission.prompts == PROMPTS + 2


async def test_with_changed_data_nothing_of_the_old_epochs_is_drawn_again(run: AsyncEngine) -> None:
    await drawn(run, (0, ABORTED), (1, ABORTED))
    await set_run(run, first_epoch=1)
    restored = await restore(run)
    assert (restored.next_place, restored.redraw) == (PROMPTS, ()), "the new data have not been drawn from yet"


async def test_with_changed_data_the_position_is_that_within_the_new_epochs(run: AsyncEngine) -> None:
    await drawn(run, (0, ABORTED), (3, TRAINED), (4, ABORTED))
    await set_run(run, first_epoch=1)
    restored = await restore(run)
    assert (restored.next_place, restored.redraw) == (5, (4,))


async def test_a_complete_group_is_kept_and_an_unfinished_one_given_up(run: AsyncEngine) -> None:
    await drawn(run, (0, LIVE), (1, LIVE), (2, LIVE), (3, LIVE))
    for group in (2, 0):
        for index in range(2):
            await finish_scored(run, training_group(group), index, float(index))
    await finish_scored(run, training_group(1), 0, 1.0)
    await finish(run, training_group(1), 1, "ab")
    restored = await restore(run)
    kept = [KeptGroup(group_id=training_group(group), version_tag=0) for group in (2, 0)]
    assert list(restored.kept) == kept, "in order of completion"
    assert restored.unfinished == (training_group(1), training_group(3))
    assert restored.redraw == (1, 3)


async def test_a_complete_group_that_the_filter_drops_is_not_kept(
    store: AsyncEngine, tiny_model_dir: Path, train: Path
) -> None:
    dropping = {"enable": True, "name": "dynamic_sampling_filter"}
    psrl = {"staleness": 1, "staleness_buffer_entries": 1, "rollout_n": 2, "group_post_process": dropping}
    await admit(store, config_values(tiny_model_dir, train, psrl=psrl))
    await drawn(store, (0, LIVE), (1, LIVE))
    for group, rewards in ((0, (0.5, 0.5)), (1, (0.5, 1.0))):
        for index, reward in enumerate(rewards):
            await finish_scored(store, training_group(group), index, reward)
    restored = await restore(store)
    assert [kept.group_id for kept in restored.kept] == [training_group(1)]
    assert (restored.unfinished, restored.redraw) == ((training_group(0),), (0,))


async def test_a_batch_whose_step_was_not_recorded_comes_first_and_unchanged(run: AsyncEngine) -> None:
    await drawn(run, *((place, LIVE) for place in range(5)))
    for group in range(4):
        for index in range(2):
            await finish_scored(run, training_group(group), index, float(index))
    for buffer, taken in enumerate(((3, 0), (1, 2))):
        groups: tuple[GroupId, ...] = tuple(training_group(number) for number in taken)
        await StoreActivities(run).make_batch(BatchRequest(run_id=RUN, buffer=buffer, taken=groups))
    await stepped(run, [0], reward=0.25)
    restored = await restore(run)
    assert (restored.version, restored.reward_mean) == (1, 0.25)
    assert restored.batch == (training_group(1), training_group(2))
    assert (restored.kept, restored.unfinished, restored.redraw) == ((), (training_group(4),), (4,))
    await stepped(run, [1], reward=0.25)
    restored = await restore(run)
    assert (restored.version, restored.batch, restored.reward_mean) == (2, (), 1.25)


@pytest.mark.parametrize(("steps", "why"), [([0, 2], "has trained 2 steps up to version 3"), (range(6), "nothing is")])
async def test_a_run_with_a_hole_in_its_steps_or_none_left_is_not_resumed(
    run: AsyncEngine, steps: Sequence[int], why: str
) -> None:
    await stepped(run, steps)
    with pytest.raises(ApplicationError, match=why) as refused:
        await restore(run)
    assert refused.value.type == "NothingToResume"


async def test_a_run_that_is_done_is_not_resumed(run: AsyncEngine) -> None:
    await set_run(run, phase=RunPhase.DONE)
    with pytest.raises(ApplicationError, match="is done: all 6 steps were trained"):
        await restore(run)
