"""What in a function is for a process of its own."""

import asyncio
import functools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
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


def enters_a_folder(sample: object) -> None:
    os.chdir("/")


def keeps_what_is_printed(sample: object) -> None:
    with redirect_stdout(None):
        print(sample)


def prints_elsewhere(sample: object) -> None:
    sys.stdout = sys.__stderr__  # type: ignore[assignment]


def guards_against_a_models_code(sample: object) -> None:
    import shutil

    shutil.rmtree = None  # type: ignore[assignment]


def wants_a_loop(sample: object) -> None:
    asyncio.get_event_loop().run_until_complete(asyncio.sleep(0))


POOL = ProcessPoolExecutor()
"""Starts nothing before it is used."""


def has_a_pool_since_its_import(sample: object) -> Any:
    return POOL.submit(len, "a").result()


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
        (has_a_pool_since_its_import, "uses POOL, a ProcessPoolExecutor"),
        (enters_a_folder, "uses os.chdir"),
        (keeps_what_is_printed, "uses contextlib.redirect_stdout"),
        (prints_elsewhere, "changes sys.stdout"),
        (guards_against_a_models_code, "changes shutil.rmtree"),
        (wants_a_loop, "uses asyncio.get_event_loop"),
    ],
)
def test_what_is_for_a_process_of_its_own_is_found_wherever_it_hides(
    function: Callable[..., Any], telling: str
) -> None:
    assert needs_process(function).endswith(telling)


def alarmed(sample: object) -> str:
    """Words in common with the module are no use of it."""
    alarm = str(sample)
    return f"{alarm} {asyncio.run} {signal}"


async def on_its_loop(sample: object) -> None:
    asyncio.get_event_loop()


class Counter:
    stdout = 0


def counts(sample: object) -> None:
    """An object called like a module is none."""
    sys = Counter()
    sys.stdout = 1


@pytest.mark.parametrize("function", [alarmed, on_its_loop, counts, len, str.upper, pytest.approx, asyncio.run])
def test_what_does_not_need_a_process_is_left_in_a_thread(function: Callable[..., Any]) -> None:
    assert needs_process(function) == ""


@pytest.mark.parametrize(
    ("name", "call"), [("signal.alarm", lambda: signal.alarm(30)), ("os.chdir", lambda: os.chdir("/"))]
)
def test_what_belongs_to_the_process_is_refused_in_a_thread_of_user_code_and_told(
    name: str, call: Callable[[], object]
) -> None:
    told: list[BaseException] = []

    def work() -> None:
        try:
            with refused(), pytest.raises(ValueError, match=f"{name} only works in main thread"):
                call()
        except NeedsProcess as need:
            told.append(need)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [str(need) for need in told] == [f"it uses {name}, which is for a process of its own"]
