"""The engine that only takes time, against sums done by hand."""

import math
import random

import pytest

from psrl.schemas.cost_model import CostModel
from psrl.workers.simulate.engine import Engine, Sequence

FLAT = CostModel(other_threshold=0, other_latency_b=0.01, other_latency_k=0, attn_latency_b=0, attn_latency_k=0)
LOADED = CostModel(
    other_threshold=0.0064,
    other_latency_b=0.0027,
    other_latency_k=0.0001231,
    attn_latency_b=0.0028,
    attn_latency_k=3e-7,
)


def sequence(length: int, group: int = 0, prompt: int = 10) -> Sequence:
    return Sequence(group=group, index=0, prompt=prompt, length=length)


def drained(engine: Engine) -> list[tuple[float, int]]:
    """When which group's sequence ended, until none is left."""
    ends = []
    while (now := engine.next_change()) < math.inf:
        ends += [(now, one.group) for one in engine.change(now)]
    return ends


def test_one_sequence_takes_its_prefill_and_a_pass_per_token() -> None:
    engine = Engine(FLAT, 0.001, slots=4)
    engine.add(sequence(100, prompt=50), 2.0)
    assert drained(engine) == [(pytest.approx(2.0 + 0.05 + 1.0), 0)]


def test_beyond_the_slots_they_run_one_after_the_other() -> None:
    engine = Engine(FLAT, 0.0, slots=2)
    for group, length in enumerate([100, 200, 300]):
        engine.add(sequence(length, group), 0.0)
    assert (engine.running, engine.waiting) == (2, 1)
    assert drained(engine) == [(pytest.approx(1.0), 0), (pytest.approx(2.0), 1), (pytest.approx(4.0), 2)]


def test_a_growing_cache_takes_the_time_of_every_pass() -> None:
    """The closed form against the sum over passes."""
    lengths = [40, 100, 250]
    engine = Engine(LOADED, 0.0, slots=8)
    for group, length in enumerate(lengths):
        engine.add(sequence(length, group, prompt=500), 0.0)
    now, cache, left = 0.0, 1500.0, dict(enumerate(lengths))
    expected = {}
    while left:
        now += LOADED.latency(len(left), cache + len(left) / 2)  # in the middle of the pass
        cache += len(left)
        for group in [group for group in left if lengths[group] == left[group] - 1 or left[group] == 1]:
            expected[group] = now
            cache -= 500 + lengths[group]
            del left[group]
        left = {group: count - 1 for group, count in left.items()}
    assert {group: at for at, group in drained(engine)} == pytest.approx(expected, rel=1e-6)


def test_what_is_interrupted_keeps_its_tokens_and_pays_prefill_for_them() -> None:
    engine = Engine(FLAT, 0.001, slots=4)
    answer = sequence(100, prompt=0)
    engine.add(answer, 0.0)
    assert engine.interrupt(0.4) == [answer]
    assert answer.sampled == pytest.approx(40)
    engine.add(answer, 1.0)
    assert drained(engine) == [(pytest.approx(1.0 + 0.04 + 0.6), 0)]
    assert engine.prefilled_again == pytest.approx(40)


def test_a_paused_engine_keeps_what_it_has_and_samples_nothing() -> None:
    engine = Engine(FLAT, 0.001, slots=4)
    engine.add(sequence(100, prompt=0), 0.0)
    engine.pause(0.4)
    assert engine.next_change() == math.inf
    engine.resume(3.0)
    assert drained(engine) == [(pytest.approx(3.6), 0)]
    assert engine.prefilled_again == 0


def test_a_full_cache_puts_the_newest_back() -> None:
    engine = Engine(FLAT, 0.0, slots=4, kv_capacity_tokens=150)
    engine.add(sequence(100, 0, prompt=10), 0.0)
    engine.add(sequence(100, 1, prompt=10), 0.0)
    ends = drained(engine)
    assert [group for _, group in ends] == [0, 1]
    assert ends[0][0] == pytest.approx(1.0)
    assert ends[1][0] == pytest.approx(1.0 + 0.35), "65 tokens were sampled beside the other, before the cache was full"
    assert engine.prefilled_again == pytest.approx(75)


@pytest.mark.parametrize("seed", range(20))
def test_no_token_is_lost_or_invented_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    engine = Engine(LOADED, 1e-4, slots=4, kv_capacity_tokens=2000)
    inside: set[Sequence] = set()
    now, ended, gone = 0.0, 0, 0.0
    for number in range(300):
        now += rng.random()
        while (change := engine.next_change()) <= now:
            for one in engine.change(change):
                inside.remove(one)
                ended += one.length
        if rng.random() < 0.7:
            one = sequence(rng.randrange(1, 400), number)
            inside.add(one)
            engine.add(one, now)
        elif inside:
            one = min(inside, key=lambda sequence: sequence.group)
            inside.remove(one)
            engine.remove(one, now)
            gone += one.sampled
        assert engine.running + engine.waiting == len(inside)
        assert engine.kv_tokens(now) <= 2000 + 1e-3
    engine.settle(now)
    assert engine.sampled == pytest.approx(ended + gone + sum(one.sampled for one in inside))
