"""The HTTP application: which URL is what. Everything else is in the parts."""

import json
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...schemas.errors import PsrlError
from . import anthropic, responses
from .access import Access, token_of
from .body import BodyLimit, json_object
from .chat import Asked, Chat, Completion
from .chat import chunks as chat_chunks
from .completions import Completions
from .completions import chunks as completion_chunks
from .control import Control, named
from .dialects import loaded
from .errors import NO_RETRY, STORE_AWAY, ApiError, as_api_error
from .metrics import Metrics
from .models import Models
from .protocol import ChatRequest, CompletionRequest, Shared
from .slots import Slots
from .store import Sessions
from .stream import Streams, openai_events
from .turns import Route, Turns
from .workflows import Workflows

log = logging.getLogger(__name__)

Chunks = Callable[[dict[str, Any], bool], Iterable[dict[str, Any]]]
"""The events of a stream that say the same as a body, with or without its usage."""
STACK = "x-psrl-stack"
"""Whose gateway the caller means; one of another stack refuses (L14)."""


@dataclass
class Gateway:
    """The parts of one gateway."""

    sessions: Sessions
    workflows: Workflows
    route: Route
    stack_id: str = ""

    def __post_init__(self) -> None:
        self.slots, self.streams = Slots(), Streams()
        self.metrics, self.access = Metrics(self.slots), Access(self.sessions)
        self.models = Models(self.sessions.config)
        self.turns = Turns(
            self.sessions,
            self.workflows,
            self.models,
            route=self.route,
            slots=self.slots,
            metrics=self.metrics,
        )
        self.chat, self.completions = Chat(self.sessions, self.turns), Completions(self.sessions, self.turns)
        self.control = Control(self.sessions, self.workflows, self.models)

    def app(self) -> ASGIApp:
        app = FastAPI(title="psrl gateway", docs_url=None, redoc_url=None, openapi_url=None)
        for kind in (ApiError, HTTPException, ValidationError, PsrlError, RecursionError, *STORE_AWAY, Exception):
            app.add_exception_handler(kind, _told)
        add_health(app, self)
        add_control(app, self)
        add_openai(app, self)
        add_dialects(app, self)
        return Counted(OnlyOurs(BodyLimit(app), self.stack_id), self.metrics)


def add_health(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok", "stack_id": gateway.stack_id}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(gateway.metrics.page(), media_type="text/plain; version=0.0.4")


def add_control(app: FastAPI, gateway: Gateway) -> None:
    access, control = gateway.access, gateway.control

    @app.post("/sessions", status_code=201)
    async def open_session(request: Request) -> dict[str, Any]:
        run_id = await access.run(request)
        return await control.open(run_id, token_of(request), dict(request.headers))

    @app.get("/sessions/{name}")
    async def show(name: str, request: Request) -> JSONResponse:
        return JSONResponse(await control.show(await access.session(request, name)))

    @app.delete("/sessions/{name}")
    async def close(name: str, request: Request) -> JSONResponse:
        return JSONResponse(await control.close(await access.session(request, name)))

    @app.get("/control/sessions")
    async def listed(request: Request) -> list[dict[str, Any]]:
        return await control.listed(await access.run(request))

    @app.post("/control/hang")
    async def hang(request: Request) -> dict[str, list[str]]:
        run_id = await access.run(request)
        return await control.hang(run_id, named(await _json(request)))

    @app.post("/control/continue")
    async def go_on(request: Request) -> dict[str, list[str]]:
        run_id = await access.run(request)
        return await control.go_on(run_id, named(await _json(request)))


def add_openai(app: FastAPI, gateway: Gateway) -> None:
    access = gateway.access

    @app.get("/sessions/{name}/v1/models")
    async def models(name: str, request: Request) -> dict[str, Any]:
        session = await access.session(request, name)
        model = await gateway.models.of(session.run_id)
        shared = {"object": "model", "created": 0, "owned_by": "psrl", "max_model_len": model.config.context_tokens}
        return {"object": "list", "data": [{"id": one, **shared} for one in model.names]}

    @app.post("/sessions/{name}/v1/chat/completions")
    async def chat(name: str, request: Request) -> Response:
        session = await access.session(request, name)
        asked = ChatRequest.model_validate(await json_object(request))
        completing = gateway.chat.complete(session, asked, await asked_of(request))
        return await answer(asked, completing, chat_chunks)

    @app.post("/sessions/{name}/v1/completions")
    async def completions(name: str, request: Request) -> Response:
        session = await access.session(request, name)
        asked = CompletionRequest.model_validate(await json_object(request))
        completing = gateway.completions.complete(session, asked, await asked_of(request))
        return await answer(asked, completing, completion_chunks)

    async def answer(asked: Shared, completing: Coroutine[Any, Any, Completion], chunks: Chunks) -> Response:
        if asked.stream:
            with_usage = asked.usage_in_stream
            return await gateway.streams.answer(completing, lambda done: openai_events(chunks(done.body, with_usage)))
        done = await completing
        return JSONResponse(done.body, headers=done.headers)


def add_dialects(app: FastAPI, gateway: Gateway) -> None:
    access, work = gateway.access, gateway.models.worked_out

    @app.post("/sessions/{name}/v1/messages")
    async def messages(name: str, request: Request) -> Response:
        session = await access.session(request, name)
        body = await json_object(request)
        await loaded()
        asked = await work(lambda: anthropic.chat_request(body))
        completing = gateway.chat.complete(session, asked, await asked_of(request))
        if asked.stream:
            return await gateway.streams.answer(completing, anthropic.events, anthropic.told)
        done = await completing
        return JSONResponse(await work(lambda: anthropic.message(done)), headers=done.headers)

    @app.post("/sessions/{name}/v1/responses")
    async def respond(name: str, request: Request) -> Response:
        session = await access.session(request, name)
        body = await json_object(request)
        await loaded()
        exchange = await work(lambda: responses.Exchange(body))
        asked = await work(exchange.chat_request)
        completing = gateway.chat.complete(session, asked, await asked_of(request))
        if exchange.stream:
            return await gateway.streams.answer(completing, exchange.events, responses.told)
        done = await completing
        return JSONResponse(await work(lambda: exchange.response(done)), headers=done.headers)


async def asked_of(request: Request) -> Asked:
    return Asked(request.url.path, request.headers, await request.body())


async def _json(request: Request) -> Any:
    try:
        return json.loads(await request.body())
    except ValueError as error:
        raise ApiError(400, "invalid_json", f"the body is no JSON: {error}") from error


async def _told(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = ApiError(
            error.status_code, "not_found" if error.status_code == 404 else "invalid_request", error.detail
        )
    told = as_api_error(error)
    if told is None:
        log.error("%s %s", request.method, request.url.path, exc_info=error)
        told = ApiError(500, "internal_error", "a defect of the gateway; its log says more", headers=NO_RETRY)
    return error_response(told, anthropic=request.url.path.endswith(("/v1/messages", "/v1/messages/count_tokens")))


def error_response(error: ApiError, anthropic: bool = False) -> Response:
    body = error.anthropic() if anthropic else error.openai()
    return JSONResponse(body, status_code=error.status, headers=error.headers)


class OnlyOurs:
    """ASGI middleware: who says whose gateway is meant gets an answer of no other."""

    def __init__(self, app: ASGIApp, stack_id: str) -> None:
        self._app, self._stack_id = app, stack_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meant = Headers(scope=scope).get(STACK) if scope["type"] == "http" and self._stack_id else None
        if meant not in (None, self._stack_id):
            error = ApiError(421, "another_stack", f"this is the gateway of another stack: {self._stack_id}")
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Counted:
    """ASGI middleware: answers by their status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.answered(message["status"])
            await send(message)

        await self._app(scope, receive, counting if scope["type"] == "http" else send)
