"""Advantages, each estimator against numbers computed by hand."""

import math
import statistics
from collections.abc import Sequence

import pytest

from psrl.activities.training.algorithms import grpo, rloo
from psrl.activities.training.schedule import learning_rate
from psrl.schemas.config import AlgorithmSection


def group_advantages(rewards: Sequence[float | None], groups: Sequence[int], divide_by_std: bool) -> list[float | None]:
    return grpo.advantages(rewards, groups, AlgorithmSection(norm_adv_by_std_in_grpo=divide_by_std))


def test_an_advantage_is_the_distance_to_the_mean_in_unbiased_standard_deviations() -> None:
    rewards = [0.1, 0.9, 0.4, 0.4, 7.0, -3.0]
    expected = []
    for group in (rewards[:4], rewards[4:]):
        expected += [(r - statistics.mean(group)) / (statistics.stdev(group) + 1e-6) for r in group]
    assert group_advantages(rewards, [0, 0, 0, 0, 1, 1], divide_by_std=True) == pytest.approx(expected, abs=1e-12)


def test_a_failed_reward_has_no_advantage_and_does_not_enter_the_statistics() -> None:
    # Field report 102: statistics over three.
    advantages = group_advantages([1.0, 0.0, None, 0.0], [0] * 4, divide_by_std=True)
    mean, std = 1 / 3, statistics.stdev([1, 0, 0])
    assert advantages[2] is None
    assert [a for a in advantages if a is not None] == pytest.approx(
        [(1 - mean) / (std + 1e-6), -mean / (std + 1e-6), -mean / (std + 1e-6)]
    )


def test_one_valid_reward_among_failed_ones_gives_a_finite_advantage_of_zero() -> None:
    # Field report 104.
    for divide in (True, False):
        assert group_advantages([None] * 7 + [1.0], [0] * 8, divide) == [None] * 7 + [0.0]


def test_a_masked_member_is_left_out_of_the_mean_of_its_group() -> None:
    # Field report 132, before scaling.
    advantages = group_advantages([1.0, None, 0.0, 0.0], [0] * 4, divide_by_std=False)
    assert advantages == [pytest.approx(2 / 3), None, pytest.approx(-1 / 3), pytest.approx(-1 / 3)]


def test_a_group_of_one_without_division_has_its_reward_as_advantage() -> None:
    assert group_advantages([0.7, None, -2.0], [0, 1, 2], divide_by_std=False) == [0.7, None, -2.0]


def test_a_group_of_one_with_division_has_no_advantage() -> None:
    assert group_advantages([0.7], [0], divide_by_std=True) == [0.0]


@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, 1e9 + 0.1])
def test_equal_rewards_give_exactly_zero(reward: float) -> None:
    assert group_advantages([reward] * 7, [3] * 7, divide_by_std=True) == [0.0] * 7


def test_a_reward_that_is_no_number_is_treated_as_missing() -> None:
    assert group_advantages([math.nan, 1.0, math.inf], [0] * 3, divide_by_std=True) == [None, 0.0, None]


def test_groups_may_be_mixed_in_any_order() -> None:
    assert group_advantages([1.0, 5.0, 3.0, 9.0], [0, 1, 0, 1], divide_by_std=False) == [-1.0, -2.0, 1.0, 2.0]


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    """1 against 1/3, twice 0 against 2/3, and 0.6 of the second group against 0.2."""
    found = rloo.advantages([1.0, 1.0, 0.0, 0.0, 0.6, 0.2], [0, 0, 0, 0, 1, 1], AlgorithmSection())
    assert found == pytest.approx([2 / 3, 2 / 3, -2 / 3, -2 / 3, 0.4, -0.4])


def test_leave_one_out_leaves_failed_rewards_out_and_never_invents_a_baseline() -> None:
    found = rloo.advantages([1.0, None, 0.0, math.nan, 5.0, None], [0, 0, 0, 0, 1, 1], AlgorithmSection())
    assert found == [1.0, None, -1.0, None, 0.0, None]
    assert rloo.advantages([0.1] * 7, [0] * 7, AlgorithmSection()) == [0.0] * 7


def test_the_learning_rate_rises_linearly_from_one_step_s_share_and_stays() -> None:
    assert [learning_rate(0.4, 4, step) for step in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert learning_rate(0.4, 0, 0) == 0.4
