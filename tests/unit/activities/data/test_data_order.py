"""The order of prompts is a function of (seed, epoch) alone."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from psrl.activities.data.order import permutation, place_of


@given(prompts=st.integers(1, 50), seed=st.integers(0, 5), epochs=st.integers(1, 4))
def test_every_prompt_is_drawn_once_per_epoch(prompts: int, seed: int, epochs: int) -> None:
    places = [place_of(number, prompts, True, seed) for number in range(prompts * epochs)]
    for epoch in range(epochs):
        drawn = [place.prompt for place in places if place.epoch == epoch]
        assert sorted(drawn) == list(range(prompts))


def test_the_position_after_an_epoch_boundary_is_the_start_of_the_next_epoch() -> None:
    assert place_of(7, 4, False, 0) == (1, 3, 3)
    assert place_of(8, 4, False, 0) == (2, 0, 0)


def test_epochs_and_seeds_differ_and_other_processes_agree() -> None:
    assert len({permutation(100, seed, epoch) for seed in (0, 1) for epoch in (0, 1)}) == 4
    code = "from psrl.activities.data.order import permutation; print(permutation(100, 1, 1))"
    elsewhere = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert elsewhere.stdout.strip() == str(permutation(100, 1, 1))
