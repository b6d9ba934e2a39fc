"""From an import path in a run's configuration to what is the user's own. Used for rewards, group filters and
environments."""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dis import get_instructions
from hashlib import blake2s
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ...schemas.config.reward import is_file
from ...schemas.errors import UserError, nearest
from ...schemas.text import named

UserFunction = Callable[..., Any]
"""Sync or async."""

FORMS = "package.module:function or path/to/file.py:function"
NOBODYS = ("<", os.path.dirname(__file__), os.path.dirname(os.__file__))
"""How the files begin whose lines tell a user nothing: Python's own, installed packages, and ours."""
ITERATES = {"FOR_ITER", "GET_AITER", "UNPACK_SEQUENCE", "UNPACK_EX"}
ITERATORS = {
    *[
        "all",
        "any",
        "anext",
        "deque",
        "dict",
        "enumerate",
        "fsum",
        "join",
        "list",
        "max",
        "min",
        "next",
        "reduce",
        "send",
        "set",
        "sorted",
        "sum",
        "tuple",
    ]
}
"""What takes a generator apart, as it is compiled and as it is called."""
MAX_PLACES = 4
"""Lines of the user's code that an import went through, the innermost ones."""

_imported: dict[str, int] = {}
"""Modification time of each module's file when it was imported here."""


def load_function(key: str, path: str, refusal: type[UserError]) -> UserFunction:
    """`package.module:function`, as `load_object` finds it. Raises `refusal`."""
    function = load_object(key, path, refusal)
    if inspect.isclass(function):
        raise refusal(f"{key}={path!r} is a class; allowed: a function, or an object of a class that can be called")
    if not callable(function):
        raise refusal(f"{key}={path!r} is a {type(function).__name__}, not a function")
    if _yields(function):
        raise refusal(f"{key}={path!r} is a generator, which yields; allowed: a function that returns")
    return function  # type: ignore[no-any-return]


def load_object(key: str, path: str, refusal: type[UserError]) -> Any:
    """What the value of `key` names, looked for on the import path and in the working directory; or in a file. Raises
    `refusal`; when the user's module fails on import, with the lines that failed."""
    place, colon, name = path.rpartition(":")
    if not (place and colon and name):
        raise refusal(f"{key}={path!r}; allowed: {FORMS}")
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    from_file = is_file(place)
    if from_file and not Path(place).is_file():
        raise refusal(f"{key}={path!r}: there is no file {place} (working directory {os.getcwd()})")
    try:
        module = _run_file(Path(place).resolve()) if from_file else _import_current(place)
    except BaseException as error:  # the border to user code, which may raise anything
        raise refusal(
            f"{key}={path!r}: importing {place} failed (working directory {os.getcwd()}): {_told(error)}"
        ) from error
    found: Any = module
    for part in name.split("."):
        above, found = found, getattr(found, part, None)
        if found is None:
            raise refusal(f"{key}={path!r}: {place} has no {name!r}{nearest(part, dir(above))}")
    return found


def _told(error: BaseException) -> str:
    """What failed, and the user's own lines that led there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if not frame.filename.startswith(NOBODYS) and "site-packages" not in frame.filename
    ]
    places = " -> ".join(f"{frame.filename}, line {frame.lineno}: {frame.line or '?'}" for frame in own[-MAX_PLACES:])
    advice = ""
    if isinstance(error, ImportError) and "relative import" in named(error):
        advice = "; a file named by its path belongs to no package, its module does: package.module:function"
    return f"{named(error)}{f' ({places})' if places else ''}{advice}"


def _yields(function: UserFunction) -> bool:
    """Whether a call gives a generator: it does so itself, or passes on what it is wrapped around. Of an object, its
    `__call__`."""
    layer: Any = function if isinstance(function, FunctionType | MethodType) else type(function).__call__
    while layer is not None:
        if inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
            return True
        inner = layer.__func__ if isinstance(layer, MethodType) else layer
        if not isinstance(inner, FunctionType) or _reads(inner.__code__):
            return False
        layer = vars(inner).get("__wrapped__")
    return False


def _reads(code: CodeType) -> bool:
    """Whether it takes apart what another function yields."""
    steps = {step.opname for step in get_instructions(code)}
    return bool(steps & ITERATES or ITERATORS & set(code.co_names))


def is_async(function: UserFunction) -> bool:
    """Also an object whose `__call__` is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    )


def signature_of(function: UserFunction) -> inspect.Signature | None:
    """None for one that has none to look at: some of those written in C."""
    try:
        return inspect.signature(function)
    except Exception:  # noqa: BLE001  (the border to user code: an object is asked for its attributes)
        return None


def takes_one(signature: inspect.Signature, given: Mapping[str, Any]) -> bool:
    """Whether it can be called with one argument beside those that are given by name."""
    try:
        signature.bind(None, **given)
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


def _run_file(file: Path) -> ModuleType:
    """As Python runs a script: what lies beside it can be imported. Its folder comes last, so that a file named like a
    module of Python's takes nobody's place."""
    changed = file.stat().st_mtime_ns
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    name = _name_of(file)
    if name in sys.modules and _imported.get(name) == changed:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _imported[name] = changed
    return module


def _name_of(file: Path) -> str:
    """Its own, by which a process that the user's code spawns imports it: a worker of a pool that cannot would leave
    its caller waiting. Another where that is a module's of somebody else."""
    found = None if file.stem in sys.stdlib_module_names else PathFinder.find_spec(file.stem)
    held = sys.modules.get(file.stem)
    ours = found is not None and found.origin is not None and Path(found.origin).resolve() == file
    if ours and (held is None or Path(getattr(held, "__file__", None) or "").resolve() == file):
        return file.stem
    return f"{file.stem}_{blake2s(bytes(file), digest_size=6).hexdigest()}"
