"""Drawing writes groups with their trajectories, once."""

from pathlib import Path

import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.exceptions import ApplicationError

from psrl.activities.data.dataset import DatasetCache
from psrl.activities.data.draw import Draw
from psrl.activities.store.codec import decode_ids
from psrl.schemas.messages.data import DrawValidationRequest
from psrl.schemas.tables import Group, Trajectory
from tests.support.runs import RUN, admit, config_values, draw, sums, write_jsonl

pytestmark = pytest.mark.integration


@pytest.fixture
async def run(store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path) -> AsyncEngine:
    """The store, with a run of five prompts admitted."""
    train = write_jsonl(tmp_path / "train.jsonl", sums(5))
    validation = write_jsonl(tmp_path / "validation.jsonl", sums(3, first=5))
    await admit(store, config_values(tiny_model_dir, train, data={"val_files": [str(validation)]}))
    return store


async def test_groups_follow_the_order_of_the_epochs_and_carry_their_tags(run: AsyncEngine) -> None:
    assert await draw(run, [0] * 5) == ("000000", "000001", "000002", "000003", "000004")
    await draw(run, [1] * 5, first=5)
    async with run.connect() as connection:
        rows = (await connection.execute(select(Group.__table__).order_by(Group.group_id))).all()
    assert [(row.epoch, row.position, row.version_tag) for row in rows] == [(e, p, e) for e in (0, 1) for p in range(5)]
    for epoch in (0, 1):
        assert {row.ground_truth for row in rows if row.epoch == epoch} == {"1", "2", "3", "4", "5"}
    first = rows[0]
    assert (first.purpose, first.status, first.data_source) == ("train", "live", "sums")
    assert first.prompt_text == f"<|user|>{first.row}+1=<|assistant|>"
    assert len(decode_ids(first.prompt_ids)) == 6


async def test_whatever_admission_lets_through_can_be_drawn(
    store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"prompt": "a", "x\\u0000": ["\\ud83d\\ude00"], "data_source": "s", '
        f'"big": {"9" * 4300}, "huge": {"9" * 4301}, "x": [NaN, 1e999, 1.5], "deep": {90 * "["}{90 * "]"}, '
        '"reward_model": {"ground_truth": {"\\u2028": [1, null, true]}}}\n{"prompt": "b"}\n'
    )
    admission = await admit(store, config_values(tiny_model_dir, tmp_path / "a.jsonl", data={"shuffle": False}))
    await draw(store, [0])
    async with store.connect() as connection:
        (group,) = await connection.execute(select(Group.extra, Group.ground_truth, Group.data_source))
    deep = group.extra.pop("deep")
    assert group == (
        {"x\\x00": ["\U0001f600"], "big": int("9" * 4300), "huge": None, "x": [None, None, 1.5]},
        {"\u2028": [1, None, True]},
        "s",
    )
    assert str(deep) == 90 * "[" + 90 * "]"
    assert len(admission.notes) == 3


async def test_drawing_again_changes_nothing(run: AsyncEngine) -> None:
    await draw(run, [0, 0], trajectories=3)
    async with run.begin() as connection:
        await connection.execute(update(Trajectory).values(status="finished"))
    assert await draw(run, [0, 0, 0], trajectories=3) == ("000000", "000001", "000002")
    async with run.connect() as connection:
        found = (await connection.execute(select(Trajectory.group_id, Trajectory.index, Trajectory.status))).all()
    assert sorted(found) == [
        (f"00000{group}", index, "pending" if group == 2 else "finished") for group in range(3) for index in range(3)
    ]


async def test_a_drawn_group_cannot_change_its_tag(run: AsyncEngine) -> None:
    await draw(run, [0])
    with pytest.raises(ApplicationError, match=r"group 000000 .* version tag 0, now with 1"):
        await draw(run, [1])


async def test_a_validation_round_has_every_validation_prompt_once(run: AsyncEngine) -> None:
    request = DrawValidationRequest(run_id=RUN, version=3, trajectories=2)
    result = await Draw(run, DatasetCache()).draw_validation(request)
    assert result.groups == ("v000003-0000", "v000003-0001", "v000003-0002")
    async with run.connect() as connection:
        rows = (await connection.execute(select(Group.__table__).order_by(Group.group_id))).all()
        trajectories = (await connection.execute(select(Trajectory.group_id))).all()
    assert [(row.purpose, row.version_tag, row.ground_truth) for row in rows] == [
        ("validation", 3, truth) for truth in ("6", "7", "8")
    ]
    assert len(trajectories) == 6


async def test_drawing_nothing_or_for_nobody(run: AsyncEngine) -> None:
    assert await draw(run, []) == ()
    request = DrawValidationRequest(run_id="nobody", version=0, trajectories=1)
    with pytest.raises(ApplicationError, match="run 'nobody' is not in the store"):
        await Draw(run, DatasetCache()).draw_validation(request)


async def test_changed_data_stops_a_run_instead_of_training_on_other_prompts(run: AsyncEngine, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", sums(6))
    with pytest.raises(ApplicationError, match="have changed since the run was admitted") as caught:
        await draw(run, [0])
    assert caught.value.type == "DataError"
