"""What in a function is for a process of its own."""

import asyncio
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from signal import setitimer
from typing import Any

import pytest

from psrl.activities.user_code.signals import NeedsProcess, needs_process, refused


class Alarm:
    def __enter__(self) -> None:
        signal.alarm(1)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)


class Verifier:
    def verify(self) -> float:
        with Alarm():
            return 1.0

    def __call__(self, sample: object) -> float:
        return self.verify()


VERIFIER = Verifier()


def directly(sample: object) -> None:
    signal.alarm(3)


def by_name(sample: object) -> None:
    setitimer(signal.ITIMER_REAL, 1)


def with_a_context(sample: object) -> None:
    with Alarm():
        pass


def with_an_object(sample: object) -> float:
    return VERIFIER.verify()


def in_a_nested_function(sample: object) -> Any:
    def inner() -> None:
        import signal

        signal.alarm(1)

    return inner()


def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        signal.alarm(1)
        return function(*args)

    return wrapper


@decorator
def decorated(sample: object) -> float:
    return 1.0


@functools.cache
def remembered(sample: object) -> None:
    directly(sample)


def forks(sample: object) -> None:
    os.fork()


def has_a_pool(sample: object) -> None:
    with ProcessPoolExecutor():
        pass


def has_a_process(sample: object) -> None:
    multiprocessing.Process(target=directly).start()


@pytest.mark.parametrize(
    ("function", "telling"),
    [
        (directly, "directly uses signal.alarm"),
        (by_name, "by_name uses signal.setitimer"),
        (with_a_context, "Alarm.__enter__ uses signal.alarm"),
        (with_an_object, "Alarm.__enter__ uses signal.alarm"),
        (VERIFIER, "Alarm.__enter__ uses signal.alarm"),
        (VERIFIER.verify, "Alarm.__enter__ uses signal.alarm"),
        (in_a_nested_function, "in_a_nested_function uses signal.alarm"),
        (decorated, "decorated uses signal.alarm"),
        (remembered, "directly uses signal.alarm"),
        (functools.partial(directly, 1), "directly uses signal.alarm"),
        (forks, "forks uses os.fork"),
        (has_a_pool, "has_a_pool uses concurrent.futures.ProcessPoolExecutor"),
        (has_a_process, "has_a_process uses multiprocessing.Process"),
    ],
)
def test_what_uses_an_alarm_or_forks_is_found_wherever_it_hides(function: Callable[..., Any], telling: str) -> None:
    assert needs_process(function).endswith(telling)


def alarmed(sample: object) -> str:
    """Words in common with the module are no use of it."""
    alarm = str(sample)
    return f"{alarm} {asyncio.run} {signal}"


@pytest.mark.parametrize("function", [alarmed, len, str.upper, pytest.approx, asyncio.run])
def test_what_does_not_need_a_process_is_left_in_a_thread(function: Callable[..., Any]) -> None:
    assert needs_process(function) == ""


def test_an_alarm_in_a_thread_of_user_code_is_refused_and_told() -> None:
    told: list[BaseException] = []

    def call() -> None:
        try:
            with refused(), pytest.raises(ValueError, match=r"signal\.alarm only works in main thread"):
                signal.alarm(30)
        except NeedsProcess as need:
            told.append(need)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert [str(need) for need in told] == ["it uses signal.alarm, which works in the main thread of a process only"]
