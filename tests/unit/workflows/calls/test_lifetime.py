"""A lifetime on a clock of its own: calls end as they like, stacks are away."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from psrl.workflows.calls import lifetime, settings
from psrl.workflows.calls.lifetime import Lifetime

LIMIT = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Clock:
    """In the place of `workflow`."""

    def __init__(self) -> None:
        self._now = datetime(2000, 1, 1, tzinfo=UTC)
        self._sleepers: list[tuple[datetime, asyncio.Event]] = []

    @property
    def sleepers(self) -> int:
        return len(self._sleepers)

    def now(self) -> datetime:
        return self._now

    async def sleep(self, duration: timedelta) -> None:
        due = self._now + duration, asyncio.Event()
        self._sleepers.append(due)
        try:
            await due[1].wait()
        finally:
            self._sleepers.remove(due)

    async def live(self, duration: timedelta) -> None:
        """Somebody runs the workflow meanwhile."""
        end = self._now + duration
        await asyncio.sleep(0)  # a task that was created begins
        while due := [sleeper for sleeper in self._sleepers if sleeper[0] <= end]:
            self._now, woken = min(due, key=lambda sleeper: sleeper[0])
            woken.set()
            for _ in range(3):  # it wakes, reads, and sleeps again
                await asyncio.sleep(0)
        self._now = end

    async def be_away(self, duration: timedelta) -> None:
        """What was due meanwhile comes late, all at once."""
        self._now += duration
        await self.live(timedelta())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lifetime, "workflow", clock)
    return clock


@pytest.mark.parametrize("call", [2 * MINUTE, 20 * MINUTE, 59 * MINUTE])
async def test_a_limit_is_granted_at_most_twice_however_its_calls_end(clock: Clock, call: timedelta) -> None:
    """None of them by a timeout: interrupted by weight updates, for example."""
    life, began = Lifetime(LIMIT), clock.now()
    while not life.over:
        await clock.live(min(call, life.timeout))
    life.close()
    assert LIMIT <= clock.now() - began <= 2 * LIMIT


@pytest.mark.parametrize("lived", [MINUTE, 40 * MINUTE])
async def test_an_absence_costs_a_slice(clock: Clock, lived: timedelta) -> None:
    life = Lifetime(LIMIT)
    await clock.live(lived)
    before = life.left
    await clock.be_away(timedelta(hours=12))
    assert before - life.left <= settings.ABSENCE
    life.close()


async def test_a_timer_begins_with_the_first_long_silence_and_ends_with_the_lifetime(clock: Clock) -> None:
    life = Lifetime(LIMIT)
    for _ in range(5):
        await clock.live(settings.ABSENCE)
        assert life.left > timedelta()
    await asyncio.sleep(0)
    assert not clock.sleepers
    await clock.live(settings.ABSENCE + timedelta(seconds=1))
    assert life.left > timedelta()
    await asyncio.sleep(0)
    assert clock.sleepers == 1
    life.close()
    await asyncio.sleep(0)
    assert not clock.sleepers
