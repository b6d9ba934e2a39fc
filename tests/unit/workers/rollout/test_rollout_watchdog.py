"""What the watchdog calls stuck, with a clock of the test's own."""

import asyncio
from collections.abc import Iterator

import pytest

from psrl.workers.rollout.gate import Gate
from psrl.workers.rollout.watchdog import PINGS_ONLY, Watchdog
from tests.support.rollout import SPEC
from tests.support.scripted_engine import ScriptedEngine

LIMIT_S = 8.0


class Bench:
    def __init__(self) -> None:
        self.gate, self.now = Gate(), 1000.0
        self.engine = ScriptedEngine()
        self.watchdog = Watchdog(self.gate, lambda: self.now)

    async def passes(self, seconds: float, step_s: float = 0.5) -> str:
        """Looks every half second; what the watchdog said first, or nothing."""
        await self.engine.start(SPEC)
        for _ in range(round(seconds / step_s)):
            self.now += step_s
            why = self.watchdog.look(self.engine, LIMIT_S)
            if why:
                return why
            for _ in range(4):
                await asyncio.sleep(0)  # a ping is answered
        return ""


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def waiting(bench: Bench) -> Iterator[None]:
    with bench.gate.slot("request", 3):
        yield


async def test_an_engine_that_answers_nothing_is_stuck_after_the_limit(bench: Bench, waiting: None) -> None:
    await bench.engine.stall()
    assert await bench.passes(LIMIT_S - 0.5) == ""
    assert await bench.passes(0.5) == "no sign of life for 8 s"


async def test_an_idle_engine_that_answers_nothing_is_stuck_too(bench: Bench) -> None:
    await bench.engine.stall()
    assert "no sign of life" in await bench.passes(LIMIT_S)


async def test_an_idle_engine_that_answers_is_never_stuck(bench: Bench) -> None:
    assert await bench.passes(3 * PINGS_ONLY * LIMIT_S) == ""


async def test_a_long_prefill_is_not_a_stall(bench: Bench, waiting: None) -> None:
    """No token for many limits, but the engine answers between its steps; then tokens come."""
    assert await bench.passes((PINGS_ONLY - 1) * LIMIT_S) == ""
    bench.gate.progress("request", 1)
    assert await bench.passes((PINGS_ONLY - 1) * LIMIT_S) == ""


async def test_tokens_are_a_sign_of_life_whatever_the_pings_do(bench: Bench, waiting: None) -> None:
    await bench.engine.stall()
    for _ in range(10):
        assert await bench.passes(LIMIT_S / 2) == ""
        bench.gate.progress("request", 1)


async def test_an_engine_that_answers_but_never_samples_is_stuck_in_the_end(bench: Bench, waiting: None) -> None:
    assert "1 requests got no token for 80 s" in await bench.passes(PINGS_ONLY * LIMIT_S)


async def test_a_request_that_waits_for_the_store_does_not_accuse_the_engine(bench: Bench, waiting: None) -> None:
    with bench.gate.storing():
        assert await bench.passes(2 * PINGS_ONLY * LIMIT_S) == ""


async def test_time_in_which_the_host_itself_was_frozen_does_not_count(bench: Bench, waiting: None) -> None:
    bench.now += 100 * LIMIT_S
    assert await bench.passes(LIMIT_S / 2) == ""


async def test_a_new_engine_has_the_whole_limit(bench: Bench, waiting: None) -> None:
    await bench.engine.stall()
    assert await bench.passes(LIMIT_S - 0.5) == ""
    bench.watchdog.reset()
    assert await bench.passes(LIMIT_S - 0.5) == ""
