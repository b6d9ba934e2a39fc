"""Reward functions that do what no function should, as `tests.support.hostile_rewards:…`."""

import asyncio
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psrl.schemas.messages.rewards import RewardSample

LIMIT_S = 30
"""Of an alarm: nothing waits for it."""


class Speechless(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


class Nameless(type):
    @property
    def __name__(cls) -> str:
        raise RuntimeError("no name")


class Unnamed(Exception, metaclass=Nameless):
    pass


class Endless(Exception):
    """Its text takes longer than anybody waits."""

    def __str__(self) -> str:
        time.sleep(60)
        return ""


class Unspeakable:
    def __repr__(self) -> str:
        raise KeyError("no repr")


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("cannot be sent", lambda: None)
        self.held = (each for each in "ab")


def raises(sample: RewardSample) -> float:
    """What the answer names."""
    errors: dict[str, BaseException] = {
        "nul": ValueError("an answer with \0 and \ud800 in it"),
        "speechless": Speechless(),
        "exit": SystemExit("reward ends the process"),
        "interrupt": KeyboardInterrupt("by hand"),
        "cancelled": asyncio.CancelledError("by itself"),
        "closed": GeneratorExit(),
        "stop": StopIteration(3),
        "huge": ValueError("x" * 50_000_000),
        "unpicklable": Unpicklable(),
        "group": ExceptionGroup("two", [ValueError("the first\nof them"), KeyError("second")]),
        "empty": ValueError(),
        "unnamed": Unnamed("by its class"),
        "lines": ValueError("\n\n the reason\nmore"),
    }
    raise errors[sample.response_text]


async def raises_async(sample: RewardSample) -> float:
    await asyncio.sleep(0)
    return raises(sample)


def raises_endlessly(sample: RewardSample) -> float:
    raise Endless


def recurses(sample: RewardSample) -> float:
    return recurses(sample)


def returns(sample: RewardSample) -> Any:
    """What the answer names."""
    values: dict[str, Any] = {
        "unspeakable": Unspeakable(),
        "iterator": iter([1.0]),
        "nothing": None,
        "text": "1.0",
        "list": [1.0],
        "class": float,
    }
    return values[sample.response_text]


def yields(sample: RewardSample) -> Iterator[float]:
    yield 1.0


class Yields:
    def __call__(self, sample: RewardSample) -> Iterator[float]:
        yield 1.0


object_that_yields = Yields()
yields_below_a_decorator = contextmanager(yields)


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def last_of(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        *_, last = function(*args, **kwargs)
        return last

    return wrapper


yields_through_a_decorator = passed_on(yields)
yields_to_a_decorator = last_of(yields)
yields_to_an_inner_decorator = passed_on(last_of(yields))


def crashes_on_x(sample: RewardSample) -> float:
    if sample.response_text == "x":
        ctypes.string_at(0)
    return float(len(sample.response_text))


def exits_on_x(sample: RewardSample) -> float:
    if sample.response_text == "x":
        os._exit(3)
    return float(len(sample.response_text))


def holds_the_interpreter_on_x(sample: RewardSample) -> float:
    """No signal handler of Python's and no other thread runs meanwhile."""
    if sample.response_text == "x":
        ctypes.PyDLL(None).sleep(60)
    return 1.0


def allocates_on_x(sample: RewardSample) -> float:
    if sample.response_text == "x":
        return float(len(bytearray(1 << 29)))
    return 1.0


_kept: list[bytearray] = []


def leaks(sample: RewardSample) -> float:
    """60 MB a call, and which process it was."""
    _kept.append(bytearray(60 << 20))
    return float(os.getpid())


def pid(sample: RewardSample) -> float:
    return float(os.getpid())


def starts_a_child(sample: RewardSample) -> float:
    """One that would outlive the call; the answer says where its number is written to."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    Path(sample.response_text).write_text(str(child))
    time.sleep(60)
    return 1.0


def starts_a_session(sample: RewardSample) -> float:
    """As sandboxes do; its child's child is nobody's by then."""
    command = ["sh", "-c", 'sleep 60 & echo $! > "$0"', sample.response_text]
    subprocess.run(command, start_new_session=True, check=True)
    time.sleep(60)
    return 1.0


def forks_on_x(sample: RewardSample) -> float:
    """And returns twice."""
    if sample.response_text == "x":
        return float(os.fork() == 0)
    return float(len(sample.response_text))


def forgets_its_alarm_on_x(sample: RewardSample) -> float:
    if sample.response_text == "x":
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        return 1.0
    signal.sigtimedwait([signal.SIGUSR1], 0.5)
    return float(len(sample.response_text))


def limited(sample: RewardSample) -> float:
    """Limits its own time, as verifiers do."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(LIMIT_S)
    try:
        return float(len(sample.response_text))
    finally:
        signal.alarm(0)


def limited_by_a_helper(sample: RewardSample) -> float:
    return limited(sample)


def limited_out_of_sight(sample: RewardSample) -> float:
    """Nobody who looks at it sees what it calls; and it takes every failure for a wrong answer."""
    try:
        return float(vars(sys.modules[__name__])["limi" + "ted"](sample))
    except Exception:  # noqa: BLE001  (as people's functions do)
        return 0.0


class Alone:
    """Made ready to be called, by one caller at a time: says how many calls it has seen at once in a folder."""

    is_async, about, at_once = False, None, 1

    def __init__(self) -> None:
        self.function = self.ask

    def ask(self, argument: Path) -> int:
        mine = argument / str(os.getpid())
        mine.touch()
        deadline = time.monotonic() + 2
        while (seen := len(list(argument.iterdir()))) == 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        mine.unlink()
        return seen

    def read(self, argument: Path, returned: Any) -> Any:
        return returned
