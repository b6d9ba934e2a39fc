"""Bodies of requests: bounded, and JSON objects."""

import json
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, bad_request

MAX_BODY = 8 * 1024 * 1024
"""Five million characters of history or so: more than any context holds."""
DISCARDED = 8 * MAX_BODY
"""Of a body that is too large so much is read and dropped, since a client that is cut off while it writes never reads
why."""


class BodyLimit:
    """ASGI middleware: a body never takes more memory than the limit, whatever its length is said to be."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                await _discard(receive, message, read)
                raise ApiError(413, "request_too_large", f"the body is larger than {self._limit} bytes; allowed: that")
            return message

        await self._app(scope, bounded if scope["type"] == "http" else receive, send)


async def json_object(request: Request) -> dict[str, Any]:
    """Raises `ApiError`."""
    try:
        value = json.loads(await request.body())
    except ValueError as error:  # UnicodeDecodeError is one
        raise bad_request(f"the body is no JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise bad_request("the body is nested too deeply", code="invalid_json") from error
    if not isinstance(value, dict):
        raise bad_request("the body is not a JSON object", code="invalid_json")
    return value


async def _discard(receive: Receive, message: Message, read: int) -> None:
    while message.get("more_body") and read < DISCARDED:
        message = await receive()
        read += len(message.get("body", b""))
