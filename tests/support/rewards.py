"""Reward functions of the tests, named in configurations as `tests.support.rewards:…`."""

import asyncio
import threading
from typing import Any

from psrl.schemas.messages.rewards import RewardSample

released = threading.Event()
"""Lets hanging functions return, so that no thread outlives its test by much."""
calls: list[str] = []
"""What the counting functions were called with."""
hanging: list[str] = []
"""What the hanging functions were called with that have not returned."""


def answered(text: str, **values: Any) -> RewardSample:
    """A sample with this answer."""
    least = {"data_source": "", "prompt_text": "", "ground_truth": None, "extra": {}, "prompt_ids": []}
    return RewardSample.model_validate({**least, "response_text": text, "response_ids": [], **values})


def length(sample: RewardSample) -> float:
    return float(len(sample.response_text))


async def length_async(sample: RewardSample) -> float:
    await asyncio.sleep(0)
    return float(len(sample.response_text))


def length_wrapped(sample: RewardSample) -> Any:
    return length_async(sample)


def counted(sample: RewardSample) -> float:
    calls.append(sample.response_text)
    return 1.0


def numbered(sample: RewardSample) -> int:
    """Another value at every call."""
    calls.append(sample.response_text)
    return len(calls)


def raises(sample: RewardSample) -> float:
    calls.append(sample.response_text)
    raise ValueError(f"cannot judge {sample.response_text!r}\nsecond line")


def raises_what_cannot_be_stored(sample: RewardSample) -> float:
    raise ValueError("an answer with \0 and \ud800 in it")


class Speechless(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


def raises_without_a_text(sample: RewardSample) -> float:
    raise Speechless


def succeeds_at_third_call(sample: RewardSample) -> float:
    calls.append(sample.response_text)
    if len(calls) < 3:
        raise ConnectionError("judge is busy")
    return 0.5


def refuses_x(sample: RewardSample) -> float:
    if sample.response_text == "x":
        raise ValueError("no x")
    return float(sample.response_text)


def _hang(sample: RewardSample) -> None:
    hanging.append(sample.response_text)
    released.wait(60)
    hanging.remove(sample.response_text)


def hangs_on_x(sample: RewardSample) -> float:
    if sample.response_text == "x":
        _hang(sample)
    return 1.0


async def hangs_on_x_async(sample: RewardSample) -> float:
    if sample.response_text == "x":
        await asyncio.sleep(30)
    return 1.0


async def blocks_on_x_async(sample: RewardSample) -> float:
    """Async by name only: it blocks the event loop it runs on."""
    if sample.response_text == "x":
        _hang(sample)
    return 1.0


def exits(sample: RewardSample) -> float:
    raise SystemExit("reward ends the process")


troubled: dict[int, int] = {}
"""Calls of `in_trouble` so far, by the row's number."""


def in_trouble(sample: RewardSample) -> float:
    """Row 1 never has a reward, three calls for row 4 fail, all answers to row 2 are worth the same, others differ."""
    number = int(sample.extra["extra_info"]["number"])
    troubled[number] = troubled.get(number, 0) + 1
    if number == 1 or (number == 4 and troubled[number] <= 3):
        raise ValueError(f"no judge for row {number}")
    return 1.0 if number == 2 else float(troubled[number])


gates: dict[int, threading.Event] = {}
"""Of `gated`, by the row's number."""


def gated(sample: RewardSample) -> float:
    """A row with a gate has no reward before that opens."""
    number = int(sample.extra["extra_info"]["number"])
    assert gates.setdefault(number, threading.Event()).wait(60)
    return 1.0


class Allowance:
    """So many calls return, the next ones wait for the next grant."""

    def __init__(self) -> None:
        self._left = self._grants = self._waiting = 0
        self._changed = threading.Condition()

    def add(self, calls: int) -> None:
        with self._changed:
            self._left += calls
            self._changed.notify_all()

    def grant(self, calls: int) -> None:
        """Calls that wait return at once and count for nothing: whoever made them has been stopped."""
        with self._changed:
            self._left = calls
            self._grants += 1
            self._changed.notify_all()

    @property
    def used_up(self) -> bool:
        """A call waits: its trajectory stays in flight until the next grant."""
        with self._changed:
            return self._waiting > 0

    def take(self) -> None:
        with self._changed:
            grant = self._grants
            self._waiting += 1
            assert self._changed.wait_for(lambda: self._left > 0 or self._grants != grant, 120)
            self._waiting -= 1
            if self._grants == grant:
                self._left -= 1


allowance = Allowance()
"""Of `allowed`."""


def allowed(sample: RewardSample) -> float:
    allowance.take()
    return float(len(sample.response_text))


def group_rank(samples: list[RewardSample]) -> list[int]:
    """0 for the shortest answer, 1 for the next …"""
    order = sorted(range(len(samples)), key=lambda i: len(samples[i].response_text))
    return [order.index(i) for i in range(len(samples))]


def group_short(samples: list[RewardSample]) -> list[float]:
    return [1.0]


def shaped(sample: RewardSample) -> dict[str, object]:
    """Right when the answer begins with 1; a length term on top tells even failures apart."""
    calls.append(sample.response_text)
    right = sample.response_text.startswith("1")
    return {"score": right - 0.1 * len(sample.response_text), "acc": right, "parsed": sample.response_text}


def sometimes_without_acc(sample: RewardSample) -> dict[str, float]:
    return {"score": 1.0, "style": 2.0} if sample.response_text == "x" else {"score": 0.0, "acc": 0.0}


def of_two(solution, truth):  # type: ignore[no-untyped-def]
    """As other frameworks have it."""


not_a_function = 3
