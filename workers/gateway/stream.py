"""Answers as server-sent events. A turn is told when it has ended: what the agent gets is what was stored."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from starlette.responses import Response, StreamingResponse

from .chat import Completion
from .errors import ApiError, as_api_error

QUIET_S = 15.0
"""A turn that takes longer begins its stream before it has ended, so that no proxy takes the connection for dead. Until
then an error has its own HTTP status, which a client's own retries look at."""

Events = AsyncIterator[str]
Result = TypeVar("Result")


def data(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def openai_events(events: Iterable[dict[str, Any]]) -> Events:
    for event in events:
        yield data(event)
    yield "data: [DONE]\n\n"


def openai_error(error: ApiError) -> str:
    return data(error.openai())


class Streams:
    """Turns whose answers are streams. They go on when their client has left."""

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        self._quiet_s = quiet_s
        self._running: set[asyncio.Task[Any]] = set()

    async def answer(
        self,
        completing: Coroutine[Any, Any, Completion],
        events: Callable[[Completion], Events],
        told: Callable[[ApiError], str] = openai_error,
    ) -> Response:
        task = asyncio.create_task(completing)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        done, _ = await asyncio.wait({task}, timeout=self._quiet_s)
        headers = task.result().headers if done else {}
        body = self._events(task, events, told)
        return StreamingResponse(body, media_type="text/event-stream", headers={"cache-control": "no-cache", **headers})

    async def _events(
        self, task: "asyncio.Task[Completion]", events: Callable[[Completion], Events], told: Callable[[ApiError], str]
    ) -> Events:
        while not task.done():
            yield ": the turn is being played\n\n"
            await asyncio.wait({task}, timeout=self._quiet_s)
        error = task.exception()
        if error is None:
            async for event in events(task.result()):
                yield event
        elif isinstance(error, Exception) and (known := as_api_error(error)) is not None:
            yield told(known)
        else:
            raise error
