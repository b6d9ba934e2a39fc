"""What a client is told when its request is not served: one table of errors, in OpenAI's form or in Anthropic's."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from ...schemas.errors import (
    ConversationRefused,
    PsrlError,
    RetryableError,
    SessionClosed,
    TurnInFlight,
    one_line,
)


class Told(NamedTuple):
    status: int
    code: str
    headers: Mapping[str, str] = {}


RETRY_AFTER_S = 1
RETRIED = (429, 503)
"""The same request may be served later, and the client is told when."""
STORE_AWAY = (OperationalError, InterfaceError, NoConnectionFree)


class ApiError(Exception):
    """A request that is not served."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        retried = {"Retry-After": str(RETRY_AFTER_S)} if status in RETRIED else {}
        self.headers = {**retried, **(headers or {})}

    @property
    def type(self) -> str:
        return TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def openai(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        return {
            "type": "error",
            "error": {"type": ANTHROPIC.get(self.status, "invalid_request_error"), "message": self.message},
        }


TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
ANTHROPIC = {
    **TYPES,
    413: "request_too_large",
    500: "api_error",
    501: "api_error",
    503: "overloaded_error",
}


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, code, message, param)


def invalid(error: ValidationError) -> ApiError:
    """The first thing that is wrong, by its path."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    return bad_request(f"{path}: {one_line(first['msg'])}" if path else one_line(first["msg"]), path or None)


def unknown_session(name: str) -> ApiError:
    return ApiError(404, "session_not_found", f"session {name!r} is not known")


NO_RETRY = {"x-should-retry": "false"}
"""Stock clients repeat every 409 and 5xx by themselves unless told not to."""
TOLD: Sequence[tuple[tuple[type[Exception], ...], Told]] = (
    ((SessionClosed,), Told(409, "session_closed", NO_RETRY)),
    ((TurnInFlight,), Told(409, "turn_in_flight", NO_RETRY)),
    ((ConversationRefused,), Told(400, "invalid_messages")),
    ((RecursionError,), Told(400, "invalid_value")),  # of what a request nests
    ((RetryableError, *STORE_AWAY), Told(503, "unavailable")),
    ((PsrlError,), Told(500, "internal_error", NO_RETRY)),
)
"""The first that fits counts."""


def as_api_error(error: Exception) -> ApiError | None:
    """None: a defect of ours."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return invalid(error)
    for kinds, told in TOLD:
        if isinstance(error, kinds):
            said = "the store does not answer" if isinstance(error, STORE_AWAY) else one_line(error)
            return ApiError(told.status, told.code, said, headers=told.headers)
    return None
