"""The penalty for answers that come near the greatest length."""

import pytest

from psrl.activities.rewards.built_in.overlong import Overlong
from psrl.schemas.config.built_in_rewards import OverlongOptions
from tests.support.rewards import answered


@pytest.mark.parametrize(
    ("length", "score"), [(0, 0.0), (2048, 0.0), (2049, -1 / 3072), (3584, -0.5), (5120, -1.0), (6656, -1.5)]
)
def test_the_penalty_grows_over_the_buffer(length: int, score: float) -> None:
    overlong = Overlong(OverlongOptions(max_response_length=5120, buffer_length=3072))
    found = overlong(answered("", response_ids=[1] * length))
    assert found == {"score": pytest.approx(score), "hit": float(length > 2048)}


def test_the_factor_is_the_penalty_of_the_longest_answer() -> None:
    overlong = Overlong(OverlongOptions(max_response_length=10, buffer_length=10, factor=0.5))
    assert [overlong(answered("", response_ids=[1] * length))["score"] for length in (0, 4, 10)] == [0.0, -0.2, -0.5]
