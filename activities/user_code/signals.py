"""What a function may not do in a thread. Signals belong to a process's main thread (`signal.alarm` is how verifiers
limit their own time): in a thread Python refuses `signal.signal`, some functions take that refusal for a wrong answer
and return 0.0, and an alarm without a handler ends the whole process. The working directory, where prints go and the
functions of `os` belong to all threads: those who run a model's code change them, and the others meet it.

Two nets: `needs_process` looks at a function before it is called; `refused` notices what that has overlooked.
"""

import functools
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dis import get_instructions
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ...schemas.errors import UserCodeFailed
from .load import UserFunction

TELLING = {
    "signal": ("alarm", "setitimer"),
    "os": ("fork", "forkpty", "chdir", "fchdir", "umask"),
    "contextlib": ("chdir", "redirect_stdout", "redirect_stderr"),
    "resource": ("setrlimit",),
    "multiprocessing": ("Process", "Pool"),
    "concurrent.futures": ("ProcessPoolExecutor",),
}
"""What is for a process of its own: signals and what all threads share for the reasons above; a fork copies the
threads' locks as they stand, and the child waits for them for ever."""
ONLY_SYNC = {"asyncio": ("get_event_loop",)}
"""The same for functions that are not async: a thread but the main one has no event loop until it makes one."""
POOLS = ("multiprocessing.pool", "multiprocessing.managers", "concurrent.futures.process")
"""Modules of objects that were made on import and fork when they are used."""
GUARDED = {"signal": ("signal", *TELLING["signal"]), "os": ("chdir", "fchdir")}
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
            raise NeedsProcess(f"it uses {_here.wanted}, which is for a process of its own")


@functools.cache
def _install() -> None:
    for module, names in GUARDED.items():
        for name in names:
            original = getattr(sys.modules[module], name)
            setattr(sys.modules[module], name, _guarded(f"{module}.{name}", original))


def _guarded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not _here.depth:
            return original(*args, **kwargs)
        _here.wanted = name
        raise ValueError(f"{name} only works in main thread of the main interpreter")

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
            if telling := _telling(names, scope, found.__code__):
                return f"{found.__module__}.{found.__qualname__} {telling}"
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


def _telling(names: set[str], scope: Mapping[str, Any], code: CodeType) -> str:
    is_async = bool(code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR))
    for module_name, functions in (TELLING if is_async else TELLING | ONLY_SYNC).items():
        module = sys.modules.get(module_name)
        # `import signal` inside the function leaves the module's name among its own.
        reached = any(scope.get(name) is module for name in names) or module_name in names
        for name in functions:
            if name in names and module is not None and (reached or scope.get(name) is getattr(module, name, module)):
                return f"uses {module_name}.{name}"
    for name in sorted(names):
        if type(scope.get(name)).__module__ in POOLS:
            return f"uses {name}, a {type(scope[name]).__name__}"
    return next((f"changes {changed}" for changed in _changed_for_all(code, scope)), "")


def _changed_for_all(code: CodeType, scope: Mapping[str, Any]) -> Iterator[str]:
    """`sys.stdout = …`, `os.kill = None`: what is set in modules of Python's own."""
    before = None
    for step in get_instructions(code):
        if step.opname == "STORE_ATTR" and before is not None and "LOAD" in before.opname:
            name = str(before.argval)
            imported = sys.modules.get(name) if name in code.co_names else None
            held = imported if "FAST" in before.opname else scope.get(name)
            if isinstance(held, ModuleType) and held.__name__ in sys.stdlib_module_names:
                yield f"{held.__name__}.{step.argval}"
        before = step
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _changed_for_all(constant, scope)


def _reached(names: set[str], scope: Mapping[str, Any]) -> Iterator[Any]:
    """Values that the code names: in its scope, and in the modules it names there."""
    for value in [scope[name] for name in sorted(names) if name in scope]:
        if isinstance(value, ModuleType):
            yield from (vars(value)[part] for part in sorted(names) if part in vars(value))
        else:
            yield value
