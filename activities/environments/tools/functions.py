"""A Python function as a tool: its schema from type hints and docstring, its arguments checked by the same types."""

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ....schemas.errors import EnvironmentLoadError, one_line
from ...user_code.load import is_async, load_function
from .tool import BadCall, function_schema

KEY = "psrl.agentic_rl.tools"
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
ARGUMENT = re.compile(r"^\s*(?::param\s+)?\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.+)$")
"""`name: what it is`, also with its type in brackets, in the sections that docstrings have for arguments; or Sphinx's
`:param name: what it is`."""
SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Returns|Raises|Yields|Example|Examples):\s*$")


class PythonTool:
    def __init__(self, path: str) -> None:
        """`package.module:function`. Raises `EnvironmentLoadError` for a function that cannot be a tool."""
        self._function = load_function(KEY, path, EnvironmentLoadError)
        self.name = path.rpartition(":")[2]
        self.repeatable = bool(getattr(self._function, "repeatable", True))
        description, told = read_docstring(inspect.getdoc(self._function) or "")
        if not description:
            raise EnvironmentLoadError(
                f"{KEY}: {path} has no docstring; allowed: one that tells the model what it does"
            )
        self._arguments = arguments_model(path, self._function, told)
        self.schema = function_schema(self.name, description, _schema_of(path, self._arguments))

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """A sync function runs in a thread of its own: one that hangs holds nobody else up."""
        try:
            checked = self._arguments.model_validate(arguments)
        except ValidationError as error:
            raise BadCall("; ".join(_fault(item) for item in error.errors())) from error
        given = {
            name: getattr(checked, name) for name in type(checked).model_fields if name in checked.model_fields_set
        }
        if is_async(self._function):
            return await self._function(**given)
        returned = await in_thread(self.name, lambda: self._function(**given))
        return await returned if inspect.isawaitable(returned) else returned


def arguments_model(path: str, function: Callable[..., Any], told: Mapping[str, str]) -> type[BaseModel]:
    """The function's parameters as a model. Raises `EnvironmentLoadError`."""
    try:
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise EnvironmentLoadError(f"{KEY}: the types of {path} cannot be read: {one_line(error)}") from error
    fields: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind not in NAMED:
            raise EnvironmentLoadError(f"{KEY}: {path} takes {parameter}; allowed: arguments that have names")
        if name not in hints:
            raise EnvironmentLoadError(f"{KEY}: {path} does not say of which type {name!r} is; allowed: a type hint")
        default = PydanticUndefined if parameter.default is inspect.Parameter.empty else parameter.default
        fields[name] = (hints[name], FieldInfo(default=default, description=told.get(name)))
    try:
        return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticUserError, NameError) as error:
        raise EnvironmentLoadError(
            f"{KEY}: {path} has a parameter without a form in JSON: {one_line(error)}"
        ) from error


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What it says of the function, and of each argument."""
    description: list[str] = []
    arguments: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if found := SECTION.match(line):
            section = found[1]
            continue
        named = ARGUMENT.match(line)
        if named and (section in ("Args", "Arguments", "Parameters") or line.lstrip().startswith(":param")):
            arguments[named[1]] = named[2].strip()
        elif not section and not line.lstrip().startswith(":"):
            description.append(line)
    return " ".join(" ".join(description).split()), arguments


async def in_thread(name: str, work: Callable[[], Any]) -> Any:
    """What it returns or raises. Whoever waits may give up: the thread then goes on, and keeps no process alive."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: Exception | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def run() -> None:
        try:
            value, error = work(), None
        except Exception as raised:  # noqa: BLE001  (the border to user code, which may raise anything)
            value, error = None, raised
        except BaseException as raised:  # noqa: BLE001  (one that would end a process is an error of the tool)
            value, error = None, RuntimeError(repr(raised))
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name=f"tool {name}", daemon=True).start()
    return await result


def _schema_of(path: str, arguments: type[BaseModel]) -> dict[str, Any]:
    try:
        schema = arguments.model_json_schema()
    except PydanticUserError as error:
        raise EnvironmentLoadError(
            f"{KEY}: {path} has a parameter without a form in JSON: {one_line(error)}"
        ) from error
    return _without_titles(schema)


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Pydantic's own names for things would only cost the policy tokens; a property may be called so."""
    kept = {key: value for key, value in schema.items() if key not in ("title", "additionalProperties")}
    for key in ("properties", "$defs"):
        if key in kept:
            kept[key] = {name: _without_titles(part) for name, part in kept[key].items()}
    return kept


def _fault(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    return f"{place}: {item['msg']}" if place else str(item["msg"])
