"""The border between our errors and Temporal's: every activity implementation passes through it.

A `PsrlError` becomes an application error whose type is the class name, retryable or not as the class says. Any other
exception is left to Temporal, which retries it under the activity's policy. Cancellation passes untouched.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from temporalio.exceptions import ApplicationError

from ..schemas.errors import PsrlError
from ..schemas.text import MAX_REASON, storable

Params = ParamSpec("Params")
Result = TypeVar("Result")


def boundary(implementation: Callable[Params, Awaitable[Result]]) -> Callable[Params, Awaitable[Result]]:
    """Decorate an async activity (under `@activity.defn`)."""

    @functools.wraps(implementation)
    async def guarded(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return await implementation(*args, **kwargs)
        except PsrlError as error:
            # A cause would go into history as well, with its text uncut: the stack alone tells where it came from.
            raise as_application_error(error).with_traceback(error.__traceback__) from None

    return guarded


def as_application_error(error: PsrlError) -> ApplicationError:
    """The same failure in the form that crosses process borders. A text that no protocol takes would cost it its type,
    and a user's mistake would be retried."""
    message = storable(str(error), MAX_REASON)
    return ApplicationError(message, type=type(error).__name__, non_retryable=not error.retryable)
