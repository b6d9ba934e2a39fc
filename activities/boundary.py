"""The border between our errors and Temporal's: every activity implementation passes through it.

A `PsrlError` becomes an application error whose type is the class name, retryable or not as the class says. Any other
exception becomes a retryable one that tells its causes too. Whatever was raised, its text is cut: the server refuses a
failure beyond a size, and then nobody learns what failed. Cancellation and what Temporal itself raises pass untouched.
"""

import functools
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from temporalio.exceptions import ApplicationError, TemporalError

from ..schemas.errors import PsrlError
from ..schemas.text import MAX_REASON, storable, with_causes

Params = ParamSpec("Params")
Result = TypeVar("Result")

MAX_FRAMES = 40
"""Of the stack that goes into history, the innermost ones."""


def boundary(implementation: Callable[Params, Awaitable[Result]]) -> Callable[Params, Awaitable[Result]]:
    """Decorate an async activity (under `@activity.defn`)."""

    @functools.wraps(implementation)
    async def guarded(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return await implementation(*args, **kwargs)
        except TemporalError:
            raise
        except Exception as error:  # noqa: BLE001  (every failure of an activity leaves through here)
            # A cause would go into history as well, with its text uncut.
            raise as_application_error(error).with_traceback(_innermost(error.__traceback__)) from None

    return guarded


def as_application_error(error: Exception) -> ApplicationError:
    """The same failure in the form that crosses process borders. A text that no protocol takes would cost it its type,
    and a user's mistake would be retried."""
    if isinstance(error, PsrlError):
        said, retryable = str(error), error.retryable
    else:
        said, retryable = with_causes(error), True
    return ApplicationError(storable(said, MAX_REASON), type=type(error).__name__, non_retryable=not retryable)


def _innermost(stack: TracebackType | None) -> TracebackType | None:
    frames, kept = 0, stack
    while stack is not None:
        stack, frames = stack.tb_next, frames + 1
    while kept is not None and frames > MAX_FRAMES:
        kept, frames = kept.tb_next, frames - 1
    return kept
