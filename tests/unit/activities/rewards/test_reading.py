"""What a reward function may return."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from psrl.activities.rewards.reading import Reading, reading
from psrl.schemas.errors import UserCodeFailed

NUMBER = st.one_of(st.booleans(), st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False))
NAME = st.text("abcdefghij_/", min_size=1, max_size=20).filter(lambda name: name != "score")


@given(NUMBER, st.dictionaries(NAME, NUMBER, max_size=8), st.dictionaries(NAME, st.text() | st.none(), max_size=4))
def test_numbers_beside_the_score_are_kept_and_what_is_no_number_is_left_out(
    score: float, numbers: dict[str, float], others: dict[str, object]
) -> None:
    found = reading({**others, "score": score, **numbers})
    assert found == Reading(float(score), {name: float(value) for name, value in numbers.items()})


def test_a_number_alone_has_no_metrics() -> None:
    assert reading(0.5) == Reading(0.5, {})


def test_numbers_of_other_libraries_are_numbers_and_several_in_one_are_none() -> None:
    returned = {
        "score": np.float32(0.5),
        "acc": torch.tensor(True),
        "half": Fraction(1, 2),
        "one": np.array([2.0]),
        "logits": torch.ones(3),
        "ids": np.ones(3),
        "parsed": "42",
    }
    assert reading(returned) == Reading(0.5, {"acc": 1.0, "half": 0.5, "one": 2.0})


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ({"acc": 1.0}, "returned {'acc': 1.0}; allowed: one number, or a dict that has 'score'"),
        ({"score": None}, "returned None; allowed: one finite number"),
        ({"score": float("nan")}, "returned nan; allowed: one finite number"),
        ({"score": 1, "acc": float("inf")}, "returned acc=inf; allowed: finite numbers"),
        ({"score": 1, "length": 10**400}, "returned length=1000"),
        ({"score": 1, 3: 1}, "returned the metric 3; allowed: names"),
        ({"score": 1, "a\0b": 1}, r"returned the metric 'a\x00b'; allowed: names"),
        ({"score": 1, "x" * 101: 1}, "allowed: names that are text of 1 to 100 characters"),
        ({"score": 1, "": 1}, "returned the metric ''; allowed: names"),
        ({"score": 1, **{f"m{i}": i for i in range(101)}}, "returned 101 metrics; allowed: at most 100"),
    ],
)
def test_what_cannot_be_a_reading_is_refused_naming_it(returned: Any, reason: str) -> None:
    with pytest.raises(UserCodeFailed) as caught:
        reading(returned)
    assert reason in str(caught.value)


@pytest.mark.filterwarnings("ignore:Warning. converting a masked element to nan")
def test_a_value_that_is_masked_is_not_a_zero() -> None:
    with pytest.raises(UserCodeFailed, match="allowed: one finite number"):
        reading(np.ma.masked)


@pytest.mark.parametrize("returned", [1.0, {"score": 1.0, "style": 2}, {"score": 1.0, "style": 2, "acc": "yes"}])
def test_a_number_that_the_filter_needs_is_missed_at_once(returned: Any) -> None:
    with pytest.raises(
        UserCodeFailed, match=r"no number 'acc', which algorithm.filter_groups.metric needs, only score"
    ):
        reading(returned, "acc")
    assert reading({"score": 1, "acc": False}, "acc").metrics == {"acc": 0.0}
