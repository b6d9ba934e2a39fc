"""From an import path to the user's reward function."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ...schemas.errors import RewardLoadError, nearest

RewardFunction = Callable[..., Any]
"""Sync or async; one sample to one number, or a list of samples to a list of numbers (`reward.scope`)."""

MAX_TRACEBACK = 2000

_imported: dict[str, int] = {}
"""Modification time of each module's file when it was imported here."""


def load_reward(path: str) -> RewardFunction:
    """`package.module:function`, looked for on the import path and in the working directory. Raises `RewardLoadError`;
    when the user's module fails on import, with the module's own traceback."""
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise RewardLoadError(f"reward.function={path!r}; allowed: package.module:function")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        module = _import_current(module_name)
    except Exception as error:  # the border to user code, which may raise anything
        raise RewardLoadError(
            f"reward.function={path!r}: importing {module_name} failed (working directory {os.getcwd()}):\n"
            f"{traceback.format_exc()[-MAX_TRACEBACK:]}"
        ) from error
    function = getattr(module, name, None)
    if function is None:
        raise RewardLoadError(f"reward.function={path!r}: {module_name} has no {name!r}{nearest(name, vars(module))}")
    if not callable(function):
        raise RewardLoadError(f"reward.function={path!r} is a {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


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
