"""Batches: the promises L1 (bound), L2 (once) and L10 (a failure is not a zero) hold in the database itself."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.exceptions import ApplicationError

from psrl.activities.store.activities import StoreActivities
from psrl.activities.store.groups import mark_groups_on
from psrl.schemas.ids import GroupId, RunId
from psrl.schemas.messages.training import BatchInfo, BatchRequest
from psrl.schemas.status import GroupStatus
from psrl.schemas.tables import Batch, BatchMember, Group, Trajectory
from tests.support.rollout import until
from tests.support.runs import (
    RUN,
    add_environment,
    add_segment,
    admit,
    config_values,
    draw,
    finish,
    finish_scored,
    set_trajectory,
    sums,
    write_jsonl,
)

pytestmark = pytest.mark.integration

G0, G1, G2 = GroupId("000000"), GroupId("000001"), GroupId("000002")


@pytest.fixture
async def run(store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path) -> AsyncEngine:
    """A run with eta 1, N 2 and N' 3, and three drawn groups of three trajectories, tagged 0, 0 and 1."""
    psrl = {"rollout_coordination": {"redundant_rollout": {"enable": True, "redundant_rollout_n": 3}}}
    await admit(store, config_values(tiny_model_dir, write_jsonl(tmp_path / "train.jsonl", sums(5)), psrl=psrl))
    await draw(store, [0, 0, 1], trajectories=3)
    return store


async def make(store: AsyncEngine, buffer: int, *taken: GroupId, dropped: tuple[GroupId, ...] = ()) -> BatchInfo:
    request = BatchRequest(run_id=RUN, buffer=buffer, taken=taken, dropped=dropped)
    return await StoreActivities(store).make_batch(request)


async def members(store: AsyncEngine) -> list[tuple[int, str, int]]:
    query = select(BatchMember.buffer, BatchMember.group_id, BatchMember.index)
    async with store.connect() as connection:
        return sorted((buffer, group, index) for buffer, group, index in await connection.execute(query))


async def statuses(store: AsyncEngine) -> list[str]:
    async with store.connect() as connection:
        return list(await connection.scalars(select(Group.status).order_by(Group.group_id)))


async def complete(store: AsyncEngine, group: GroupId, version: int = 0) -> None:
    for index in (0, 1):
        await finish_scored(store, group, index, float(index), version=version)


async def test_a_batch_takes_the_first_scored_of_each_group_and_leaves_the_rest(run: AsyncEngine) -> None:
    for index in (2, 0, 1):
        await finish_scored(run, G0, index, float(index), text="abcd"[: index + 1])
    await finish(run, G1, 0, "a")
    await finish_scored(run, G1, 1, 1.0)
    await finish_scored(run, G1, 2, 1.0)
    info = await make(run, 1, G0, G1)
    assert await members(run) == [(1, G0, 0), (1, G0, 2), (1, G1, 1), (1, G1, 2)]
    assert info.model_copy(update={"group_waited_mean_s": None, "group_waited_max_s": None}) == BatchInfo(
        groups=2,
        trajectories=4,
        episodes=4,
        tokens=8,
        staleness={1: 2},
        token_staleness_min=1,
        token_staleness_mean=1.0,
        reward_mean=1.0,
        reward_std=0.5**0.5,
        response_tokens_mean=2.0,
    )
    assert await statuses(run) == ["trained", "trained", "live"]


async def test_staleness_is_also_that_of_the_tokens_and_leaves_out_the_environments(run: AsyncEngine) -> None:
    for index in range(2):
        await add_segment(run, G2, index, "abc", version=1, seq=0)
        await finish_scored(run, G2, index, float(index), text="d", version=2, seq=1)
    await add_environment(run, G2, 0, "zzzzzz", turn=1)
    info = await make(run, 2, G2)
    assert (info.token_staleness_min, info.token_staleness_mean) == (0, pytest.approx((3 * 1 + 1 * 0) / 4))


async def test_tokens_of_two_versions_count_by_their_number(
    store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Field report 40: 100 tokens of version 3 and 20 of version 5 are of version 3.33 on average."""
    train = write_jsonl(tmp_path / "train.jsonl", sums(5))
    await admit(store, config_values(tiny_model_dir, train, psrl={"staleness": 2}))
    await draw(store, [3])
    for index in range(2):
        await add_segment(store, G0, index, "a" * 100, version=3)
        await finish_scored(store, G0, index, float(index), text="b" * 20, version=5, seq=1)
    info = await make(store, 5, G0)
    assert (info.staleness, info.token_staleness_min) == ({2: 1}, 0)
    assert info.token_staleness_mean == pytest.approx(5 - (100 * 3 + 20 * 5) / 120)


async def test_how_long_a_complete_group_waited_counts_from_its_last_score(run: AsyncEngine) -> None:
    now = datetime.now(UTC)
    for group, ages in ((G0, (100, 500)), (G1, (20, 20))):
        await complete(run, group)
        for index, age in enumerate(ages):
            await set_trajectory(run, group, index, scored_at=now - timedelta(seconds=age))
    info = await make(run, 0, G0, G1)
    assert info.group_waited_mean_s is not None
    assert info.group_waited_max_s is not None
    assert info.group_waited_max_s >= 100
    assert info.group_waited_max_s - info.group_waited_mean_s == pytest.approx(40)


async def test_the_means_of_what_rewards_returned_are_over_the_members_that_have_it(run: AsyncEngine) -> None:
    for index, metrics in enumerate(({"acc": 1.0, "style": 3.0}, {"acc": 0.0}, {"acc": 7.0})):
        await finish_scored(run, G0, index, float(index))
        await set_trajectory(run, G0, index, reward_metrics=metrics)
    assert (await make(run, 0, G0)).reward_metrics == {"acc": 0.5, "style": 3.0}


async def test_the_same_buffer_asked_for_again_gives_the_same_batch(run: AsyncEngine) -> None:
    await complete(run, G0)
    await complete(run, G1)
    first = await make(run, 0, G0, G1)
    assert await make(run, 0, G0, G1) == first
    assert len(await members(run)) == 4


async def test_two_attempts_at_the_same_time_make_one_batch(run: AsyncEngine) -> None:
    await complete(run, G0)
    await complete(run, G1)
    infos = await asyncio.gather(*(make(run, 0, G0, G1) for _ in range(4)))
    assert all(info == infos[0] for info in infos)
    assert len(await members(run)) == 4


async def test_dropped_groups_and_their_unfinished_trajectories_leave(run: AsyncEngine) -> None:
    await complete(run, G0)
    await finish_scored(run, G1, 0, 1.0)
    await make(run, 0, G0, dropped=(G1,))
    assert await statuses(run) == ["trained", "dropped", "live"]
    async with run.connect() as connection:
        query = select(Trajectory.status).where(Trajectory.group_id == G1).order_by(Trajectory.index)
        assert list(await connection.scalars(query)) == ["scored", "aborted", "aborted"]


async def test_a_group_with_too_few_scored_trajectories_is_refused_and_named(run: AsyncEngine) -> None:
    await complete(run, G0)
    await finish_scored(run, G1, 0, 1.0)
    await set_trajectory(run, G1, 1, status="failed", reward_error="ValueError: no")
    with pytest.raises(ApplicationError, match="L10: 000001 has 1 scored trajectories of 2") as caught:
        await make(run, 0, G0, G1)
    assert (caught.value.type, caught.value.non_retryable) == ("InvariantViolated", True)
    assert await members(run) == []
    assert await statuses(run) == ["live"] * 3


async def test_a_group_of_a_validation_round_is_refused_and_named(run: AsyncEngine) -> None:
    await complete(run, G0)
    await complete(run, G1)
    async with run.begin() as connection:
        await connection.execute(update(Group).where(Group.group_id == G1).values(purpose="validation"))
    with pytest.raises(ApplicationError, match=r"groups that cannot be trained on: 000001 \(for validation\)"):
        await make(run, 0, G0, G1)
    assert await members(run) == []


async def test_a_group_that_is_being_given_up_while_its_batch_is_made_is_refused(run: AsyncEngine) -> None:
    """The batch waits for the other transaction instead of trusting what it saw before."""
    await complete(run, G0)

    async def waits() -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        async with run.connect() as connection:
            return bool(await connection.scalar(text(query)))

    async with run.begin() as giving_up:
        await mark_groups_on(giving_up, RUN, [G0], GroupStatus.DROPPED, "slow")
        making = asyncio.create_task(make(run, 0, G0))
        await until(waits)
    with pytest.raises(ApplicationError, match=r"groups that cannot be trained on: 000000 \(dropped\)"):
        await making
    assert (await statuses(run))[0] == "dropped"


async def test_a_group_trained_in_another_buffer_is_refused(run: AsyncEngine) -> None:
    await complete(run, G0)
    await make(run, 0, G0)
    with pytest.raises(ApplicationError, match="L2: a trajectory would be trained on twice"):
        await make(run, 1, G0)
    assert {buffer for buffer, _, _ in await members(run)} == {0}


async def test_the_database_refuses_a_trajectory_in_two_batches(run: AsyncEngine) -> None:
    await complete(run, G0)
    await make(run, 0, G0)
    with pytest.raises(IntegrityError, match="pk_batch_members"):
        await insert_member(run, buffer=1, version_tag=0)


@pytest.mark.parametrize(("buffer", "version_tag"), [(2, 0), (0, 1)])
async def test_the_database_refuses_a_member_outside_its_bound(run: AsyncEngine, buffer: int, version_tag: int) -> None:
    with pytest.raises(IntegrityError, match="staleness_bound"):
        await insert_member(run, buffer, version_tag)


async def insert_member(store: AsyncEngine, buffer: int, version_tag: int) -> None:
    """Past all code of ours."""
    row = {"run_id": RUN, "group_id": G0, "index": 0, "buffer": buffer, "version_tag": version_tag, "staleness": 1}
    async with store.begin() as connection:
        await connection.execute(insert(Batch), {"run_id": RUN, "buffer": buffer, "info": {}})
        await connection.execute(insert(BatchMember), row)


@pytest.mark.parametrize(("buffer", "group"), [(2, G0), (0, G2)])
async def test_a_buffer_outside_the_bound_is_refused(run: AsyncEngine, buffer: int, group: GroupId) -> None:
    await complete(run, group, version=1)
    with pytest.raises(ApplicationError, match="L1: a group would be trained on outside its staleness bound"):
        await make(run, buffer, group)
    assert await members(run) == []


async def test_a_token_older_than_the_tag_is_refused(run: AsyncEngine) -> None:
    await complete(run, G2, version=1)
    await add_segment(run, G2, 1, "z", version=0, seq=1)
    with pytest.raises(ApplicationError, match="L1: 000002/1 has tokens of version 0, tag 1"):
        await make(run, 1, G2)


async def test_groups_that_cannot_be_trained_on_are_named(run: AsyncEngine) -> None:
    await StoreActivities(run).mark_groups(RUN, (G1,), "deadline")
    with pytest.raises(ApplicationError, match=r"x \(not in the store\), 000001 \(deadline\)"):
        await make(run, 0, GroupId("x"), G1)
    with pytest.raises(ApplicationError, match="the batch is empty"):
        await make(run, 0)


async def test_a_batch_of_an_unknown_run_is_refused(store: AsyncEngine) -> None:
    request = BatchRequest(run_id=RunId("nobody"), buffer=0, taken=(G0,))
    with pytest.raises(ApplicationError, match="run 'nobody' is not in the store"):
        await StoreActivities(store).make_batch(request)


@pytest.mark.parametrize(
    ("reason", "status"), [("filtered", "filtered"), ("failed", "failed"), ("deadline", "deadline")]
)
async def test_a_group_that_left_keeps_its_first_reason(run: AsyncEngine, reason: str, status: str) -> None:
    await StoreActivities(run).mark_groups(RUN, (G0,), reason)
    await StoreActivities(run).mark_groups(RUN, (G0, G1), "later")
    async with run.connect() as connection:
        rows = (await connection.execute(select(Group.status, Group.reason).order_by(Group.group_id))).all()
    assert rows[:2] == [(status, reason), ("aborted", "later")]


async def test_a_trained_group_cannot_be_given_up(run: AsyncEngine) -> None:
    await complete(run, G0)
    await make(run, 0, G0)
    await StoreActivities(run).mark_groups(RUN, (G0,), "late")
    assert (await statuses(run))[0] == "trained"
