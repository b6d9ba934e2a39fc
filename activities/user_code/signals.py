"""Signals belong to a process's main thread. Functions that want them (`signal.alarm` is how verifiers limit their own
time) must be told apart, for two reasons: in a thread Python refuses `signal.signal`, and some functions take that
refusal for a wrong answer and return 0.0; and an alarm without a handler ends the whole process.

Two nets: `needs_process` looks at a function before it is called; `refused` notices what that has overlooked.
"""

import functools
import signal
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ...schemas.errors import UserCodeFailed
from .load import UserFunction

TELLING = {
    "signal": ("alarm", "setitimer"),
    "os": ("fork",),
    "multiprocessing": ("Process", "Pool"),
    "concurrent.futures": ("ProcessPoolExecutor",),
}
"""What is for a process of its own: signals for the reasons above; a fork copies the threads' locks as they stand, and
the child waits for them for ever."""
GUARDED = ("signal", *TELLING["signal"])
MAX_LOOKED_AT = 2000
"""Functions. Libraries are large, and what is overlooked is noticed when it is called."""


class NeedsProcess(UserCodeFailed):
    """A call in a thread wanted what only a main thread may do: whatever it returned is no answer."""


class _Here(threading.local):
    depth = 0
    """Calls of user code in progress in this thread."""
    wanted = ""
    """The first thing that one of them was refused."""


_here = _Here()


@contextmanager
def refused() -> Iterator[None]:
    """Around a call of user code in a thread. Raises `NeedsProcess` when one in this thread tried to use signals,
    whatever became of it: on an event loop nobody can tell which of several it was."""
    _install()
    if not _here.depth:
        _here.wanted = ""
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1
        if _here.wanted:
            raise NeedsProcess(f"it uses {_here.wanted}, which works in the main thread of a process only")


@functools.cache
def _install() -> None:
    for name in GUARDED:
        setattr(signal, name, _guarded(name, getattr(signal, name)))


def _guarded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not _here.depth:
            return original(*args, **kwargs)
        _here.wanted = f"signal.{name}"
        raise ValueError(f"{_here.wanted} only works in main thread of the main interpreter")

    return guarded


def needs_process(function: UserFunction) -> str:
    """What in the function, or in what it calls, is for a process of its own; empty when nothing is found. Only looks:
    nothing is called or imported."""
    queue: list[Any] = [function]
    seen: set[int] = set()
    while queue and len(seen) < MAX_LOOKED_AT:
        for found in _functions(queue.pop(0)):
            if id(found) in seen or _is_pythons_own(found):
                continue
            seen.add(id(found))
            scope = _scope(found)
            names = set(_names(found.__code__))
            if telling := _telling(names, scope):
                return f"{found.__module__}.{found.__qualname__} uses {telling}"
            queue.extend(_reached(names, scope))
    return ""


def _functions(value: Any) -> Iterator[FunctionType]:
    """Those that a call of `value` may run: of an object or a class all of its methods, since any may call another.
    Asks no object for an attribute, which could run its code."""
    while isinstance(value, functools.partial | MethodType | classmethod | staticmethod | property):
        value = value.func if isinstance(value, functools.partial) else _inner(value)
    if isinstance(value, functools._lru_cache_wrapper):
        value = value.__wrapped__
    if isinstance(value, FunctionType):
        yield value
    elif not isinstance(value, ModuleType):
        for owner in type.mro(value) if isinstance(value, type) else type(value).__mro__:
            for member in vars(owner).values():
                found = _inner(member)
                if isinstance(found, FunctionType):
                    yield found


def _inner(value: Any) -> Any:
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, MethodType | classmethod | staticmethod) else value


def _is_pythons_own(function: FunctionType) -> bool:
    package = str(function.__module__).partition(".")[0]
    return package in sys.stdlib_module_names or package == "psrl"


def _scope(function: FunctionType) -> Mapping[str, Any]:
    """Names that its code sees: globals, and what it closes over."""
    closed = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            closed[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return ChainMap(closed, function.__globals__)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _telling(names: set[str], scope: Mapping[str, Any]) -> str:
    for module_name, functions in TELLING.items():
        module = sys.modules.get(module_name)
        # `import signal` inside the function leaves the module's name among its own.
        reached = any(scope.get(name) is module for name in names) or module_name in names
        for name in functions:
            if name in names and module is not None and (reached or scope.get(name) is getattr(module, name, module)):
                return f"{module_name}.{name}"
    return ""


def _reached(names: set[str], scope: Mapping[str, Any]) -> Iterator[Any]:
    """Values that the code names: in its scope, and in the modules it names there."""
    for value in [scope[name] for name in sorted(names) if name in scope]:
        if isinstance(value, ModuleType):
            yield from (vars(value)[part] for part in sorted(names) if part in vars(value))
        else:
            yield value
