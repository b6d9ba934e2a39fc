"""Admission: what cannot work is refused before any part works for it, and a run is admitted once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.exceptions import ApplicationError

from psrl.activities.data.admit import Admit
from psrl.activities.data.dataset import DatasetCache
from psrl.schemas.ids import RunId
from psrl.schemas.messages.data import Admission, AdmitRequest
from psrl.schemas.tables import Run
from tests.support.runs import RUN, config_values, sums, write_jsonl

pytestmark = pytest.mark.integration


async def admit(
    store: AsyncEngine, values: dict[str, Any], run_id: str = RUN, workflow_run_id: str = "first"
) -> Admission:
    request = AdmitRequest(run_id=RunId(run_id), config=values, workflow_run_id=workflow_run_id)
    return await Admit(store, DatasetCache(), instances=2).admit_run(request)


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "train.jsonl", [*sums(7), {"prompt": "x" * 21}])


async def test_an_admitted_run_has_a_row_with_its_effective_configuration(
    store: AsyncEngine, tiny_model_dir: Path, train: Path
) -> None:
    values = config_values(tiny_model_dir, train, data={"val_files": [str(train)]}, trainer={"total_epochs": 2})
    admission = await admit(store, values)
    assert admission.total_steps == 7  # 2 epochs of 7 prompts, 2 to a batch
    assert (admission.prompts, admission.skipped_too_long, admission.validation_prompts) == (7, 1, 7)
    assert admission.config["rollout"]["temperature"] == 1.0
    async with store.connect() as connection:
        row = (await connection.execute(select(Run.__table__))).one()
    assert (row.run_id, row.phase, row.config) == (RUN, "admitting", admission.config)


async def test_a_retried_admission_gives_the_same_answer_although_the_files_are_gone(
    store: AsyncEngine, tiny_model_dir: Path, train: Path
) -> None:
    values = config_values(tiny_model_dir, train)
    admission = await admit(store, values)
    await asyncio.to_thread(train.unlink)
    assert await admit(store, values) == admission


async def test_what_is_to_be_known_of_the_data_is_kept_with_the_run(
    store: AsyncEngine, tiny_model_dir: Path, train: Path
) -> None:
    await asyncio.to_thread(write_jsonl, train, [*sums(7), {"prompt": "a", "x": float("nan")}])
    values = config_values(tiny_model_dir, train)
    admission = await admit(store, values)
    assert [note.partition(":")[0] for note in admission.notes] == ["column 'x' holds what cannot be kept"]
    assert (await admit(store, values)).notes == admission.notes


async def test_a_run_id_of_another_run_is_refused(store: AsyncEngine, tiny_model_dir: Path, train: Path) -> None:
    values = config_values(tiny_model_dir, train)
    await admit(store, values)
    with pytest.raises(
        ApplicationError, match=r"run id 'run-1' is already used by a run created .*admitting"
    ) as caught:
        await admit(store, values, workflow_run_id="second")
    assert (caught.value.type, caught.value.non_retryable) == ("RunExists", True)


async def test_the_number_of_steps_is_the_smaller_of_data_and_configuration(
    store: AsyncEngine, tiny_model_dir: Path, train: Path
) -> None:
    values = config_values(tiny_model_dir, train, trainer={"total_epochs": 30, "total_training_steps": 5})
    assert (await admit(store, values)).total_steps == 5


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"psrl": {"stalenes": 1}}, ("ConfigError", r"unknown key 'stalenes' \(did you mean 'staleness'\?\)")),
        ({"psrl": {"staleness": -1}}, ("ConfigError", r"psrl\.staleness=-1")),
        ({"psrl": {"rollout_n": 1}}, ("ConfigError", r"psrl\.rollout_n=1 with group-normalised advantages")),
        ({"actor": {"ppo_mini_batch_size": 4}}, ("ConfigError", "does not divide psrl.staleness_buffer_entries=2")),
        ({"psrl": {"deployment": {"n_rollout_instances": 3}}}, ("ConfigError", "=3, but this stack has 2; allowed")),
        (
            {"psrl": {"rollout_coordination": {"routing_strategy": {"cost_model_path": "/none"}}}},
            ("ConfigError", r"cost_model_path=/none cannot be read \(No such file or directory\)"),
        ),
        ({"psrl": {"staleness_buffer_entries": 999}}, ("DataError", r"=999 is more than .* 7 usable .* at most 210")),
        (
            {"data": {"train_files": ["none.jsonl"]}},
            ("DataError", r"data\.train_files: /.*/none\.jsonl does not exist"),
        ),
        ({"data": {"max_prompt_length": 5}}, ("DataError", "no usable prompt")),
        ({"data": {"max_response_length": 60}}, ("ModelError", "longer than the context")),
        ({"model": {"path": "/none"}}, ("ModelError", "model.path=/none is not a directory")),
        ({"reward": {"function": "tests.support.none:f"}}, ("RewardLoadError", "No module named 'tests.support.none'")),
        (
            {"psrl": {"group_post_process": {"enable": True, "name": "tests.support.filters:al_long"}}},
            ("FilterLoadError", r"psrl\.group_post_process\.name=.* has no 'al_long' \(did you mean 'all_long'\?\)"),
        ),
        # Field report 9: with the lines of what fails on import.
        (
            {"reward": {"function": "tests.support.broken_reward:f"}},
            ("RewardLoadError", r"ZeroDivisionError: division by zero \(.*broken_reward\.py, line 3: RATE = 1 / 0\)"),
        ),
    ],
)
async def test_bad_input_is_refused_naming_key_value_and_what_was_allowed(
    store: AsyncEngine, tiny_model_dir: Path, train: Path, overrides: dict[str, Any], expected: tuple[str, str]
) -> None:
    kind, message = expected
    with pytest.raises(ApplicationError, match=message) as caught:
        await admit(store, config_values(tiny_model_dir, train, **overrides))
    assert (caught.value.type, caught.value.non_retryable) == (kind, True)
    async with store.connect() as connection:
        assert (await connection.execute(select(Run.run_id))).all() == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"train\.jsonl is empty"),
        ('{"prompt": "a"}\n{"prompt"', r"train\.jsonl:2: not valid JSON: Expecting ':' delimiter at column 10"),
    ],
)
async def test_broken_data_is_refused_with_its_place(
    store: AsyncEngine, tiny_model_dir: Path, train: Path, content: str, message: str
) -> None:
    await asyncio.to_thread(train.write_text, content)
    with pytest.raises(ApplicationError, match=message) as caught:
        await admit(store, config_values(tiny_model_dir, train))
    assert caught.value.type == "DataError"


async def test_a_run_id_that_could_not_name_a_folder_is_refused(
    store: AsyncEngine, tiny_model_dir: Path, train: Path
) -> None:
    with pytest.raises(ApplicationError, match="run id 'a/b' is not usable"):
        await admit(store, config_values(tiny_model_dir, train), run_id="a/b")


async def test_what_was_chosen_for_a_reward_is_among_the_notes(
    store: AsyncEngine, tiny_model_dir: Path, tmp_path: Path
) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", sums(2))
    section = {"function": "tests.support.hostile_rewards:limited"}
    admission = await admit(store, config_values(tiny_model_dir, train, reward=section))
    why = "tests.support.hostile_rewards.limited uses signal.alarm"
    assert admission.notes == (f"the reward runs in processes of its own: {why}",)
