"""Lengths of answers."""

from statistics import fmean, median

import pytest

from psrl.workers.simulate.lengths import Bimodal, Lognormal, PowerLaw, Recorded, Uniform, tokens_of

SEEN = range(20_000)


def test_a_uniform_length_lies_between_its_bounds_evenly() -> None:
    drawn = [tokens_of(Uniform(shortest=10, longest=19), 0, group, 0) for group in SEEN]
    assert (min(drawn), max(drawn)) == (10, 19)
    assert fmean(drawn) == pytest.approx(14.5, rel=0.01)


def test_a_bimodal_length_is_near_one_of_its_centres() -> None:
    lengths = Bimodal(short=100, long=1000, long_share=0.25, spread=0.1)
    drawn = [tokens_of(lengths, 0, group, 0) for group in SEEN]
    long = [length for length in drawn if length > 500]
    assert len(long) / len(drawn) == pytest.approx(0.25, rel=0.05)
    assert (min(drawn), max(drawn)) == (90, 1100)
    assert min(long) == 900
    assert lengths.longest == 1100


def test_a_lognormal_length_has_its_median_and_is_cut() -> None:
    drawn = [tokens_of(Lognormal(median=200, sigma=1.0, longest=1000), 0, group, 0) for group in SEEN]
    assert median(drawn) == pytest.approx(200, rel=0.03)
    assert max(drawn) == 1000


def test_a_power_law_halves_with_every_doubling_at_exponent_one() -> None:
    drawn = [tokens_of(PowerLaw(shortest=100, exponent=1.0, longest=100_000), 0, group, 0) for group in SEEN]
    assert min(drawn) == 100
    for times in (2, 4, 8):
        assert sum(length > 100 * times for length in drawn) / len(drawn) == pytest.approx(1 / times, rel=0.1)


def test_recorded_lengths_come_group_by_group_and_again_from_the_first() -> None:
    lengths = Recorded(groups=((7, 8), (9,)))
    assert [tokens_of(lengths, 0, group, 0) for group in range(3)] == [7, 9, 7]
    assert [tokens_of(lengths, 0, 0, index) for index in range(2)] == [7, 8]
    assert tokens_of(lengths, 0, 1, 5) == 9, "more trajectories than were recorded get one of the group's own"


def test_a_length_depends_on_seed_group_and_trajectory_alone() -> None:
    lengths = Uniform(shortest=1, longest=10**6)
    drawn = {tokens_of(lengths, seed, group, index) for seed in (0, 1) for group in (0, 1) for index in (0, 1)}
    assert len(drawn) == 8
    assert tokens_of(lengths, 1, 2, 3) == tokens_of(lengths, 1, 2, 3)
