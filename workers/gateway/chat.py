"""Chat completions: a request becomes a turn, a turn an answer. The other dialects are translated from and to this."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...activities.sessions.places import NewTurn
from ...activities.sessions.sessions import StoredSession
from ...activities.sessions.turns import KnownTurn
from ...schemas.ids import InstanceId
from . import conversation
from .conversation import Answer, Conversation
from .errors import ApiError
from .keys import turn_key
from .labels import BRANCH, STICKY, answer_headers, flag, pin_of, whole
from .models import Model
from .protocol import ChatRequest, Shared
from .store import Sessions
from .turns import Played, Request, Turns

PIECE = 24
"""Characters of one event of a stream."""


@dataclass(frozen=True)
class Asked:
    """What of a request is not its body."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Rendered:
    """As `turns.Rendered`."""

    where: NewTurn
    token_ids: Sequence[int]
    prompt_tokens: int
    beside: InstanceId | None


@dataclass(frozen=True)
class Completion:
    body: dict[str, Any]
    """As OpenAI's `chat.completion`."""
    headers: dict[str, str]


class Chat:
    def __init__(self, sessions: Sessions, turns: Turns) -> None:
        self._sessions, self._turns = sessions, turns

    async def complete(self, session: StoredSession, request: ChatRequest, asked: Asked) -> Completion:
        """Raises `ApiError` or one of our own errors."""
        request.require_served()
        model = await self._turns.models.of(session.run_id)
        require_model(model, request.model)
        said = Conversation(
            request.messages, request.tools, request.chat_template_kwargs, may_call=request.tool_choice != "none"
        )
        played = await self._turns.play(
            Request(
                session=session,
                model=model,
                key=functools.partial(turn_key, asked.headers, asked.path, asked.body),
                wish=request.wish(request.max_completion_tokens),
                render=functools.partial(self._render, session, model, said, asked.headers),
                pin=pin_of(asked.headers),
            )
        )
        name = turn_name(session, played)

        def told() -> tuple[dict[str, Any], str]:
            answer, node = conversation.read(model, said, played.sampled, name)
            return completion(name, model, request, played, answer), node

        body, node = await self._turns.models.worked_out(told)
        await self._sessions.name_turn(session, played.index, played.turn, node)
        headers = answer_headers(session, played.index, played.sampled.instance, played.ignored)
        return Completion(body, headers)

    async def _render(
        self,
        session: StoredSession,
        model: Model,
        said: Conversation,
        headers: Mapping[str, str],
        known: Sequence[KnownTurn],
    ) -> Rendered:
        work = self._turns.models.worked_out
        at = await work(lambda: conversation.place(model, session, known, said, whole(headers, BRANCH)))
        if at.parent is None:
            ids = await work(lambda: conversation.render(model, said, at, None))
            return Rendered(at.where, ids, len(ids), None)
        before = await self._sessions.sampled(session, at.parent.index, at.parent.turn)
        context = await self._sessions.prompt_tokens(session, at.parent.index, at.parent.turn)
        ids = await work(lambda: conversation.render(model, said, at, before))
        sticky = flag(headers, STICKY, flag(session.labels, STICKY, default=True))
        beside = before.instance if sticky else None
        return Rendered(at.where, ids, context + len(before.token_ids) + len(ids), beside)


def require_model(model: Model, name: str | None) -> None:
    if name is not None and name not in model.names:
        raise ApiError(
            404, "model_not_found", f"model {name!r} is not served; allowed: {', '.join(model.names)}", "model"
        )


def turn_name(session: StoredSession, played: Played) -> str:
    """The same for every answer that is made of this turn."""
    return f"{session.run_id}-{session.session_id}-{played.index}-{played.turn}"


def usage(played: Played) -> dict[str, int]:
    answer = len(played.sampled.token_ids)
    return {
        "prompt_tokens": played.prompt_tokens,
        "completion_tokens": answer,
        "total_tokens": played.prompt_tokens + answer,
    }


def completion(name: str, model: Model, request: ChatRequest, played: Played, answer: Answer) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "message": answer.message,
        "finish_reason": answer.finish_reason,
        "logprobs": {"content": token_logprobs(model, played)} if request.logprobs else None,
    }
    return {"id": f"chatcmpl-{name}", "object": "chat.completion", **body_of(model, request, played, choice)}


def body_of(model: Model, request: Shared, played: Played, choice: dict[str, Any]) -> dict[str, Any]:
    """What both kinds of completion have around their one choice."""
    if request.return_token_ids:
        choice["token_ids"] = played.sampled.token_ids
    return {
        "created": int(played.sampled.ended_at.timestamp()),
        "model": request.model or model.names[0],
        "choices": [choice],
        "usage": usage(played),
    }


def token_texts(model: Model, played: Played) -> list[str]:
    """Of each token that was sampled, alone."""
    return [model.tokenizer.decode([token], False) for token in played.sampled.token_ids]


def token_logprobs(model: Model, played: Played) -> list[dict[str, Any]]:
    """One entry for each token that was sampled, as many as there are ids."""
    texts = token_texts(model, played)
    return [
        {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
        for text, value in zip(texts, played.sampled.logprobs, strict=True)
    ]


def chunks(body: dict[str, Any], with_usage: bool) -> Iterator[dict[str, Any]]:
    """The events of a stream that say the same."""
    choice, message = body["choices"][0], body["choices"][0]["message"]
    shared = {key: body[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    more: dict[str, Any] = {"usage": None} if with_usage else {}

    def chunk(delta: dict[str, Any], **rest: Any) -> dict[str, Any]:
        inner = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None, **rest}
        return {**shared, "choices": [inner], **more}

    yield chunk({"role": "assistant", "content": ""}, logprobs=choice["logprobs"])
    for key in ("reasoning", "content"):
        text = message.get(key) or ""
        for start in range(0, len(text), PIECE):
            yield chunk({key: text[start : start + PIECE]})
    for number, call in enumerate(message.get("tool_calls") or []):
        head = {"name": call["function"]["name"], "arguments": ""}
        yield chunk({"tool_calls": [{"index": number, "id": call["id"], "type": "function", "function": head}]})
        arguments = call["function"]["arguments"]
        for start in range(0, len(arguments), PIECE):
            piece = {"arguments": arguments[start : start + PIECE]}
            yield chunk({"tool_calls": [{"index": number, "function": piece}]})
    ids = {"token_ids": choice["token_ids"]} if "token_ids" in choice else {}
    yield chunk({}, finish_reason=choice["finish_reason"], **ids)
    if with_usage:
        yield {**shared, "choices": [], "usage": body["usage"]}
