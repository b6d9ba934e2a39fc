"""Sampling seeds."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.ids import training_group
from psrl.schemas.seeds import group_seed, mixed, turn_seed


@given(st.integers(-(2**70), 2**70), st.text(max_size=20), st.integers(0, 1000))
def test_a_seed_fits_every_generator_and_is_the_same_each_time(run: int, group: str, index: int) -> None:
    seed = turn_seed(group_seed(run, group), index)
    assert 0 <= seed < 2**31
    assert seed == turn_seed(group_seed(run, group), index)


def test_neighbouring_trajectories_groups_and_runs_get_unrelated_seeds() -> None:
    seeds = [
        turn_seed(group_seed(run, training_group(group)), index)
        for run in range(4)
        for group in range(50)
        for index in range(16)
    ]
    assert len(set(seeds)) > len(seeds) - 5
    for bit in range(31):
        ones = Counter(seed >> bit & 1 for seed in seeds)[1]
        assert abs(ones / len(seeds) - 0.5) < 0.05


def test_the_order_of_the_parts_matters() -> None:
    assert mixed(1, 2) != mixed(2, 1)
