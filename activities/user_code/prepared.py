"""A user's function made ready to be called, and the one place where it is called.

Promise: whatever it raises, returns or says of itself becomes a value of ours or one short line that can be stored.
That is done where the function runs, in a thread or a process of its own: an exception may take any time to be told.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from ...schemas.errors import UserCodeFailed, UserError
from ...schemas.text import described, first_line, named, storable
from .load import UserFunction

Value = TypeVar("Value")

MAX_LINE = 300
"""Characters of a failure, or of a filter's reason, that are kept."""


class Prepared(Protocol):
    """A loaded function together with what is known of how it is called."""

    function: UserFunction
    is_async: bool
    about: Any
    """What a caller in another process wants to know of the function."""
    at_once: int | None
    """Calls at the same time that it can stand; None for as many as are configured."""

    def ask(self, argument: Any) -> Any:
        """Calls it; what an async one gives is still to be awaited."""

    def read(self, argument: Any, returned: Any) -> Any:
        """What it returned in the form that the caller wants. Raises `UserCodeFailed` for what it may not return."""


@dataclass(frozen=True)
class Recipe:
    """How `Prepared` is made, in a form that another process can follow."""

    make: Callable[..., Prepared]
    """A function of a module. Raises a `UserError` for what cannot be called."""
    arguments: tuple[Any, ...]
    named: str = "the function"
    """The configuration's key and value."""
    refusal: type[UserError] = UserError

    def prepare(self) -> Prepared:
        """Raises a `UserError`, whatever the user's objects do when they are looked at."""
        try:
            return self.make(*self.arguments)
        except UserError:
            raise
        except BaseException as error:
            raise self.refusal(f"{self.named}: looking at it raises {storable(named(error), MAX_LINE)}") from error


class Found(NamedTuple):
    """A function as seen by the process that loaded it."""

    need: str
    """What in it is for a process of its own; empty for nothing."""
    about: Any
    at_once: int | None = None
    """As in `Prepared`."""


def answer(prepared: Prepared, argument: Any, wait: Callable[[Any], Any] = asyncio.run) -> Any:
    """Calls and reads. `wait` runs a coroutine to its end. Raises `UserCodeFailed`, and nothing else."""
    try:
        returned = prepared.ask(argument)
        if inspect.isawaitable(returned):  # an async function, or a sync wrapper around one
            returned = wait(_awaited(returned))
        return prepared.read(argument, returned)
    except BaseException as error:  # noqa: BLE001  (the border to user code; also SystemExit must be reported)
        raise UserCodeFailed(one_line(error)) from None


async def answer_async(prepared: Prepared, argument: Any) -> Any:
    """The same on an event loop that other calls share."""
    try:
        returned = prepared.ask(argument)
        if inspect.isawaitable(returned):
            returned = await returned
        return prepared.read(argument, returned)
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        # One that the user's own code raises must not look like ours; SystemExit would end the loop.
        raise UserCodeFailed(one_line(error)) from None


def one_line(error: BaseException) -> str:
    """A failure that we named ourselves is told without its type."""
    said = first_line(described(error)) if isinstance(error, UserCodeFailed) else named(error)
    return storable(said, MAX_LINE)


async def _awaited(returned: Awaitable[Value]) -> Value:
    return await returned
