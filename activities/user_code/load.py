"""From an import path in a run's configuration to the user's own function. Used for rewards and group filters."""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ...schemas.errors import UserError, nearest

UserFunction = Callable[..., Any]
"""Sync or async, of one argument."""

MAX_TRACEBACK = 2000

_imported: dict[str, int] = {}
"""Modification time of each module's file when it was imported here."""


def load_function(key: str, path: str, takes: str, refusal: type[UserError]) -> UserFunction:
    """`package.module:function`, the value of `key`, looked for on the import path and in the working directory.
    Raises `refusal`; when the user's module fails on import, with the module's own traceback. `takes` says what the
    function's one argument is."""
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise refusal(f"{key}={path!r}; allowed: package.module:function")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        module = _import_current(module_name)
    except Exception as error:  # the border to user code, which may raise anything
        raise refusal(
            f"{key}={path!r}: importing {module_name} failed (working directory {os.getcwd()}):\n"
            f"{traceback.format_exc()[-MAX_TRACEBACK:]}"
        ) from error
    function = getattr(module, name, None)
    if function is None:
        raise refusal(f"{key}={path!r}: {module_name} has no {name!r}{nearest(name, vars(module))}")
    if not callable(function):
        raise refusal(f"{key}={path!r} is a {type(function).__name__}, not a function")
    if (signature := _signature(function)) is not None and not _takes_one(signature):
        raise refusal(f"{key}={path!r} takes {signature}; allowed: a function of one argument, {takes}")
    return function  # type: ignore[no-any-return]


def is_async(function: UserFunction) -> bool:
    """Also an object whose `__call__` is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    )


def _signature(function: UserFunction) -> inspect.Signature | None:
    """None for one that has none to look at: some of those written in C."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _takes_one(signature: inspect.Signature) -> bool:
    try:
        signature.bind(None)
    except TypeError:
        return False
    return True


def _import_current(name: str) -> ModuleType:
    """Imports, or imports anew when the file was edited: a worker outlives many runs, and the next run must not be
    judged by the code of the one before."""
    known = name in sys.modules
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    file = getattr(module, "__file__", None)
    if file is not None:
        changed = Path(file).stat().st_mtime_ns
        if known and _imported.get(name, changed) != changed:
            module = importlib.reload(module)
        _imported[name] = changed
    return module
