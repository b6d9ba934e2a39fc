"""The signatures that people's reward functions have."""

import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psrl.activities.rewards.judge import Judge, Question, recipe
from psrl.activities.rewards.load import check_columns, check_reward, chosen_for
from psrl.activities.rewards.shapes import Shape, for_verl, recognise
from psrl.activities.user_code.prepared import answer
from psrl.schemas.config import RewardSection
from psrl.schemas.errors import RewardLoadError, UserCodeFailed
from psrl.schemas.messages.rewards import RewardSample
from tests.support.hostile_rewards import Unspeakable

HERE = "tests.unit.activities.rewards.test_shapes"


def chat(response: str, **extra: Any) -> RewardSample:
    return RewardSample(
        data_source="openai/gsm8k",
        prompt_text="<user>3+4?",
        messages=[{"role": "user", "content": "3+4?"}],
        response_text=response,
        ground_truth="7",
        extra={"extra_info": {"index": 4}, "level": "easy", **extra},
        prompt_ids=[1],
        response_ids=[2, 3],
    )


def plain(response: str) -> RewardSample:
    return chat(response).model_copy(update={"messages": None, "extra": {}, "ground_truth": None, "data_source": ""})


def asked(name: str, *samples: RewardSample, **values: Any) -> Any:
    reward = RewardSection.model_validate({"function": f"{HERE}:{name}", **values})
    return answer(Judge(reward), Question(samples))


def verl(data_source, solution_str, ground_truth, extra_info=None):  # type: ignore[no-untyped-def]
    return float((data_source, solution_str, ground_truth, extra_info) == ("openai/gsm8k", "7", "7", {"index": 4}))


def verl_by_keyword(*, solution_str, ground_truth, **others):  # type: ignore[no-untyped-def]
    return {"score": solution_str == ground_truth, "acc": len(others), "pred": solution_str}


async def verl_async(data_source, solution_str, ground_truth, extra_info):  # type: ignore[no-untyped-def]
    return verl(data_source, solution_str, ground_truth, extra_info)


def verl_gsm8k(solution_str, ground_truth, method="strict", format_score=0.0, score=1.0):  # type: ignore[no-untyped-def]
    return score if solution_str == ground_truth else format_score


def verl_without_info(data_source, solution_str, ground_truth, extra_info):  # type: ignore[no-untyped-def]
    return 1.0 if extra_info == {} else 0.0


def verl_batch(data_sources, solution_strs, ground_truths, extra_infos, **kwargs):  # type: ignore[no-untyped-def]
    return [{"score": solution == truth} for solution, truth in zip(solution_strs, ground_truths, strict=True)]


def trl(prompts, completions, level, ground_truth, **kwargs):  # type: ignore[no-untyped-def]
    assert (level[0], kwargs["extra_info"][0], kwargs["completion_ids"][0]) == ("easy", {"index": 4}, [2, 3])
    assert prompts[0] == [{"role": "user", "content": "3+4?"}]
    return [float(one[0]["content"] == truth) for one, truth in zip(completions, ground_truth, strict=True)]


def judges_a_conversation(prompts, completions, ground_truth, level):  # type: ignore[no-untyped-def]
    (prompt,), (completion,) = prompts, completions
    assert (prompt, level) == ([{"role": "user", "content": "3+4?"}], ["easy"])
    return [float(completion == [{"role": "assistant", "content": ground_truth[0]}])]


def trl_of_text(completions, **kwargs):  # type: ignore[no-untyped-def]
    return [len(completion) for completion in completions]


def trl_with_trainer(prompts, completions, trainer_state):  # type: ignore[no-untyped-def]
    return [0.0 for _ in completions]


async def trl_async(prompts, completions):  # type: ignore[no-untyped-def]
    return [len(prompt) + len(completion) for prompt, completion in zip(prompts, completions, strict=True)]


def with_kwargs(sample, weight=1.0):  # type: ignore[no-untyped-def]
    return weight * len(sample.response_text)


def of_many(samples: list[RewardSample]) -> list[int]:
    return [len(samples) for _ in samples]


def with_a_default_that_cannot_be_shown(sample: RewardSample, of: object = Unspeakable()) -> float:
    return 1.0


@functools.cache
def remembered(sample: RewardSample) -> float:
    return 1.0


@functools.cache
def remembered_by_texts(solution_str: str, ground_truth: str) -> float:
    return float(solution_str == ground_truth)


class Callable:
    def __call__(self, data_source: str, solution_str: str, ground_truth: str) -> bool:
        return solution_str == ground_truth


an_object = Callable()
partial = functools.partial(verl_gsm8k, score=3.0)


@pytest.mark.parametrize(
    ("name", "rewards"),
    [
        ("verl", [1.0]),
        ("verl_by_keyword", [1.0]),
        ("verl_async", [1.0]),
        ("verl_gsm8k", [1.0]),
        ("verl_batch", [1.0]),
        ("trl", [1.0]),
        ("an_object", [1.0]),
        ("partial", [3.0]),
        ("with_kwargs", [1.0]),
    ],
)
def test_each_signature_is_called_as_its_own_library_calls_it(name: str, rewards: list[float]) -> None:
    assert [one.reward for one in asked(name, chat("7"))] == rewards


def test_a_function_of_lists_sees_all_that_are_scored_together() -> None:
    assert [one.reward for one in asked("trl", chat("7"), chat("8"))] == [1.0, 0.0]
    assert [one.reward for one in asked("verl_batch", chat("8"), chat("7"))] == [0.0, 1.0]


def test_a_prompt_that_is_text_is_given_as_text() -> None:
    assert [one.reward for one in asked("trl_of_text", plain("a"), plain("abc"))] == [1.0, 3.0]
    assert [one.reward for one in asked("trl_async", plain("a"))] == [11.0]


def test_what_verl_returns_beside_the_score_is_kept() -> None:
    (one,) = asked("verl_by_keyword", chat("7"))
    assert one.metrics == {"acc": 2.0}


def test_extra_info_that_the_data_lack_is_an_empty_dict_as_in_verl() -> None:
    assert [one.reward for one in asked("verl_without_info", plain("a"))] == [1.0]
    assert [one.reward for one in asked("verl_without_info", chat("a", extra_info=None))] == [1.0]


def test_extra_info_that_is_text_is_left_as_it_is() -> None:
    text = '{"index": 4}'
    assert [one.reward for one in asked("verl_gsm8k", chat("7", extra_info=text))] == [1.0]
    assert for_verl(chat("7", extra_info=text))["extra_info"] == text


def test_further_arguments_come_from_the_configuration() -> None:
    assert asked("with_kwargs", chat("abc"), kwargs={"weight": 2.0})[0].reward == 6.0
    assert asked("verl_gsm8k", chat("8"), kwargs={"format_score": 0.1})[0].reward == 0.1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(solution, truth)", r"takes \(solution, truth\); allowed: f\(sample\), veRL's f\(data_source, solution_str"),
        ("()", r"takes \(\); allowed"),
        ("(**kwargs)", "allowed"),
        ("(a, b, /)", "allowed"),
        ("(solution_str, truth)", "allowed"),
        ("(sample, *, weight)", "allowed"),
        ("(completion: str)", "one str, which may be anything"),
        ("(batch: 'dict[str, float]')", "one dict, which may be anything"),
        ("(answers: list[str])", "one list, which may be anything"),
        (
            "(completion, **kwargs)",
            "'completion' would be given a whole RewardSample; allowed: completion: RewardSample",
        ),
        ("(data, return_dict=False)", "'data' would be given a whole RewardSample"),
        ("(*args, **kwargs)", "does not say what, as behind a decorator without functools.wraps"),
        ("(prompts, completions, trainer_state)", "trainer_state of TRL's trainer is not offered here"),
    ],
)
def test_a_signature_that_fits_none_is_refused_naming_those_that_do(text: str, reason: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def f{text}: ...", namespace)
    with pytest.raises(RewardLoadError, match=reason):
        recognise("reward.function='m:f'", inspect.signature(namespace["f"]), {})


@pytest.mark.parametrize(
    "text",
    [
        "(sample)",
        "(*samples)",
        "(sample, weight=1)",
        "(response: RewardSample)",
        "(one: 'Mine')",
        "(*, completions=1)",
        "(many: list[RewardSample])",
        "(many: 'Sequence[psrl.RewardSample]')",
        "(many: list)",
    ],
)
def test_a_signature_that_fits_is_recognised(text: str) -> None:
    namespace: dict[str, Any] = {"RewardSample": RewardSample}
    exec(f"def f{text}: ...", namespace)
    shape = recognise("f", inspect.signature(namespace["f"]), {})
    assert shape is (Shape.TRL if "completions" in text else Shape.SAMPLES if "many" in text else Shape.SAMPLE)


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"wieght": 2}, r"reward\.kwargs\.wieght: f takes \(sample, weight=1\), which has no such argument"),
        ({"solution_str": "a"}, r"reward\.kwargs\.solution_str is given by the sample"),
    ],
)
def test_a_further_argument_that_the_function_cannot_take_is_refused(kwargs: dict[str, Any], reason: str) -> None:
    def f(sample, weight=1): ...  # type: ignore[no-untyped-def]
    def g(sample, **kwargs): ...  # type: ignore[no-untyped-def]

    function = g if "solution_str" in kwargs else f
    with pytest.raises(RewardLoadError, match=reason):
        recognise("f", inspect.signature(function), kwargs)


def test_a_function_of_a_list_of_samples_by_its_annotation_sees_the_whole_group() -> None:
    assert [one.reward for one in asked("of_many", chat("a"), chat("bb"))] == [2.0, 2.0]
    assert asked("of_many", chat("a"), scope="trajectory")[0].reward == 1.0
    assert Judge(RewardSection(function=f"{HERE}:of_many")).about.by_group


def test_what_is_remembered_by_its_arguments_is_refused_where_they_cannot_be() -> None:
    with pytest.raises(RewardLoadError, match=r"is remembered by its arguments \(functools\.lru_cache\)"):
        asked("remembered", chat("7"))
    assert asked("remembered_by_texts", chat("7"))[0].reward == 1.0


def test_an_object_that_raises_when_it_is_looked_at_is_refused_by_name() -> None:
    made = recipe(RewardSection(function=f"{HERE}:with_a_default_that_cannot_be_shown"))
    with pytest.raises(RewardLoadError, match=r"^reward\.function='.*shown': looking at it raises KeyError: 'no repr'"):
        made.prepare()


def test_one_sample_at_a_time_and_the_whole_group_at_once_exclude_each_other() -> None:
    with pytest.raises(RewardLoadError, match=r"reward\.scope=group, but .* one sample; allowed: reward\.scope=auto"):
        asked("verl", chat("7"), scope="group")


RETURNED: dict[str, Any] = {
    "tensor": torch.tensor([1.0, 2.0]),
    "array": np.array([True, False]),
    "tuple": (np.float32(1), torch.tensor(2)),
    "dicts": [{"score": 1}, {"score": np.int64(2), "acc": True}],
}
REFUSED: dict[str, Any] = {
    "generator": (value for value in (1.0, 2.0)),
    "map": map(float, "12"),
    "dict": {"a": 1.0, "b": 2.0},
    "set": {1.0, 2.0},
    "text": "12",
    "scalar": np.array(1.0),
    "number": 1.0,
    "short": [1.0],
    "long": torch.ones(3),
    "none": None,
    "nones": [None, None],
}


def returns(completions, of, **kwargs):  # type: ignore[no-untyped-def]
    return {**RETURNED, **REFUSED}[of]


@pytest.mark.parametrize("of", RETURNED)
def test_numbers_of_any_library_make_a_list(of: str) -> None:
    assert [one.reward for one in asked("returns", plain("a"), plain("b"), kwargs={"of": of})] == [
        float(value["score"] if isinstance(value, dict) else value) for value in RETURNED[of]
    ]


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        ("generator", "returned a generator; allowed: a list with one number or dict for each of 2 samples"),
        ("map", "returned a map; allowed: a list"),
        ("dict", "returned {'a': 1.0, 'b': 2.0}; allowed: a list"),
        ("set", "allowed: a list"),
        ("text", "returned '12'; allowed: a list"),
        ("scalar", r"returned array\(1\.\); allowed: a list"),
        ("number", "returned 1.0; allowed: a list"),
        ("short", "returned 1 values for 2 samples; allowed: a list"),
        ("long", "returned 3 values for 2 samples; allowed: a list"),
        ("none", "returned None; allowed: a list"),
        ("nones", "returned None; allowed: one finite number"),
    ],
)
def test_what_is_not_one_value_per_sample_is_refused_by_name(of: str, reason: str) -> None:
    with pytest.raises(UserCodeFailed, match=reason):
        asked("returns", plain("a"), plain("b"), kwargs={"of": of})


def checked(function: str, columns: Iterator[str] | list[str] = (), **values: Any) -> str | None:  # type: ignore[assignment]
    reward = RewardSection.model_validate({"function": function, **values})
    found = check_reward(reward)
    check_columns(reward, found, columns)
    return chosen_for(reward, found)


def test_admission_refuses_a_function_that_wants_a_column_which_the_data_lack() -> None:
    path = f"{HERE}:trl"
    with pytest.raises(RewardLoadError, match=r"no column 'ground_truth', 'level'; columns there: answer"):
        checked(path, ["answer"])
    assert checked(path, ["level", "ground_truth"]) is None


def test_admission_says_that_it_chose_processes_and_why() -> None:
    path = "tests.support.hostile_rewards:limited"
    why = "tests.support.hostile_rewards.limited uses signal.alarm"
    assert checked(path) == f"the reward runs in processes of its own: {why}"
    assert checked(path, isolation="process") is None
    with pytest.raises(RewardLoadError, match=rf"reward\.isolation=thread, but {why}.*allowed: reward\.isolation=auto"):
        checked(path, isolation="thread")


@pytest.mark.parametrize(
    ("code", "how"),
    [("import os; os._exit(4)", "exit status 4"), ("import ctypes; ctypes.string_at(0)", "SIGSEGV")],
)
def test_admission_outlives_a_module_that_ends_its_process_on_import(tmp_path: Path, code: str, how: str) -> None:
    (tmp_path / "fatal.py").write_text(code)
    with pytest.raises(RewardLoadError, match=rf"importing it failed: it ended the process that runs it \({how}\)"):
        checked(f"{tmp_path / 'fatal.py'}:f")
