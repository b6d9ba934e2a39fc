"""A run's rewards at admission."""

from typing import Any, NamedTuple

import pytest

from psrl.activities.rewards.built_in import code_tests
from psrl.activities.rewards.load import check_rewards, check_rows
from psrl.schemas.config import RewardSection
from psrl.schemas.errors import DataError, PsrlError, RewardLoadError

TESTS = {"function": "code_tests", "kwargs": {"form": "asserts"}}
JUDGE = {"base_url": "http://localhost:1/v1", "model": "m"}


class DataRow(NamedTuple):
    row: int
    ground_truth: Any
    data_source: str = ""
    extra: dict[str, Any] = {}


def checked(reward: dict[str, Any], *rows: DataRow, validation: tuple[DataRow, ...] = ()) -> list[str]:
    """The notes."""
    loaded = check_rewards(RewardSection.model_validate(reward))
    check_rows(loaded, {"data.train_files": rows, "data.val_files": validation})
    return [note for one in loaded for note in one.notes]


def test_each_of_several_is_loaded_and_what_was_chosen_for_it_is_said_by_its_name() -> None:
    functions = {
        "quick": {"function": "tests.support.rewards:length"},
        "limited": {"function": "tests.support.hostile_rewards:limited"},
        "tests": TESTS,
    }
    assert checked({"functions": functions}, DataRow(0, "assert f(1)"))[0] == (
        "the reward limited runs in processes of its own: tests.support.hostile_rewards.limited uses signal.alarm"
    )


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ({"function": "tests.support.rewards:nothing"}, "reward.functions.x.function='tests.support.rewards:nothing'"),
        (
            {"function": "tests.support.rewards:length", "kwargs": {"y": 1}},
            "reward.functions.x.kwargs.y: reward.functions.x.function='tests.support.rewards:length' takes",
        ),
        (
            {"function": "llm_judge", "kwargs": {**JUDGE, "prompt": "{{ promt }}"}},
            "reward.functions.x.kwargs.prompt names promt; allowed: data_source, extra",
        ),
        (
            {"function": "llm_judge", "kwargs": {**JUDGE, "api_key_env": "NO_SUCH_KEY"}},
            "reward.functions.x.kwargs.api_key_env='NO_SUCH_KEY', but the cpu workers have no such variable",
        ),
    ],
)
def test_what_is_wrong_with_one_of_them_is_told_by_its_key(reward: dict[str, Any], said: str) -> None:
    with pytest.raises(RewardLoadError) as refusal:
        checked({"functions": {"x": reward}})
    assert str(refusal.value).startswith(said)


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        (
            (DataRow(0, None),),
            RewardLoadError,
            "the data have no column 'ground_truth'; columns there: none beside the prompt",
        ),
        (
            (DataRow(0, "assert f(1)"), DataRow(7, "assert f(")),
            DataError,
            "data.train_files, row 7: reward.function='code_tests': column 'ground_truth': 'assert f(' is no Python: ",
        ),
        ((DataRow(0, ["assert f(1)"]), DataRow(1, [])), DataError, "data.train_files, row 1: reward.function"),
    ],
)
def test_a_row_without_tests_is_refused_by_its_place(
    rows: tuple[DataRow, ...], error: type[PsrlError], said: str
) -> None:
    with pytest.raises(error) as refusal:
        checked(TESTS, *rows)
    assert said in str(refusal.value)
    with pytest.raises(DataError, match=r"data\.val_files, row 3"):
        checked(TESTS, DataRow(0, "assert f(1)"), validation=(DataRow(3, "("),))


def test_where_code_cannot_be_confined_people_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_tests, "unconfined", lambda: "no namespaces")
    monkeypatch.setattr(code_tests, "unusable", lambda: "")
    (note,) = checked(TESTS, DataRow(0, "assert f(1)"))
    assert "the code in answers can reach the network" in note
    must = {**TESTS, "kwargs": {"form": "asserts", "must_be_confined": True}}
    with pytest.raises(RewardLoadError, match=r"reward\.kwargs\.must_be_confined=true, but .*: no namespaces"):
        checked(must, DataRow(0, "assert f(1)"))
