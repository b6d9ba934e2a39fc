"""From an import path to the user's reward function."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ...schemas.errors import RewardLoadError, nearest

RewardFunction = Callable[..., Any]
"""Sync or async; one sample to one number, or a list of samples to a list of numbers (`reward.scope`)."""

MAX_TRACEBACK = 2000


def load_reward(path: str) -> RewardFunction:
    """`package.module:function`, looked for on the import path and in the working directory. Raises `RewardLoadError`;
    when the user's module fails on import, with the module's own traceback."""
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise RewardLoadError(f"reward.function={path!r}; allowed: package.module:function")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
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
