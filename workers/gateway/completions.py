"""Completions of a bare prompt: each is a branch of its own, since a text says nothing of the turns before it."""

import functools
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from ...activities.capture.tree import Branches
from ...activities.sessions.places import NewTurn
from ...activities.sessions.sessions import StoredSession
from ...activities.sessions.turns import KnownTurn
from .chat import Asked, Completion, Rendered, body_of, require_model, token_texts, turn_name
from .keys import turn_key
from .labels import answer_headers, pin_of
from .models import Model
from .protocol import CompletionRequest, unsupported
from .store import Sessions
from .turns import Played, Request, Turns


class Completions:
    def __init__(self, sessions: Sessions, turns: Turns) -> None:
        self._sessions, self._turns = sessions, turns

    async def complete(self, session: StoredSession, request: CompletionRequest, asked: Asked) -> Completion:
        """Raises `ApiError` or one of our own errors."""
        request.require_served()
        model = await self._turns.models.of(session.run_id)
        require_model(model, request.model)
        played = await self._turns.play(
            Request(
                session=session,
                model=model,
                key=functools.partial(turn_key, asked.headers, asked.path, asked.body),
                wish=request.wish(),
                render=functools.partial(self._render, session, model, request),
                pin=pin_of(asked.headers),
            )
        )
        await self._sessions.name_turn(session, played.index, played.turn, _node(request))
        headers = answer_headers(session, played.index, played.sampled.instance, played.ignored)
        body = await self._turns.models.worked_out(lambda: completion(session, model, request, played))
        return Completion(body, headers)

    async def _render(
        self, session: StoredSession, model: Model, request: CompletionRequest, known: Sequence[KnownTurn]
    ) -> Rendered:
        ids = await self._turns.models.worked_out(lambda: prompt_ids(model, request.prompt))
        branch = Branches(session.episode, session.episodes).unused(turn.index for turn in known)
        return Rendered(NewTurn(branch), ids, len(ids), None)


def prompt_ids(model: Model, prompt: str | list[int]) -> list[int]:
    """Raises `ApiError` for ids that are none of the vocabulary."""
    if isinstance(prompt, str):
        return list(model.tokenizer(prompt, add_special_tokens=True, verbose=False)["input_ids"])
    size = len(model.tokenizer)
    for token in prompt:
        if not 0 <= token < size:
            raise unsupported("prompt", token, f"ids from 0 to {size - 1}")
    return prompt


def completion(session: StoredSession, model: Model, request: CompletionRequest, played: Played) -> dict[str, Any]:
    sampled = played.sampled
    ended = bool(sampled.token_ids) and sampled.token_ids[-1] in model.stop_ids
    shown = sampled.token_ids[: -1 if ended else None]
    choice: dict[str, Any] = {
        "index": 0,
        "text": model.tokenizer.decode(shown, True),
        "finish_reason": sampled.end.value,
        "logprobs": None if request.logprobs is None else token_logprobs(model, played),
    }
    name = turn_name(session, played)
    return {"id": f"cmpl-{name}", "object": "text_completion", **body_of(model, request, played, choice)}


def token_logprobs(model: Model, played: Played) -> dict[str, Any]:
    texts = token_texts(model, played)
    offsets = [sum(len(text) for text in texts[:number]) for number in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": played.sampled.logprobs,
        "top_logprobs": None,
        "text_offset": offsets,
    }


def chunks(body: dict[str, Any], with_usage: bool) -> Sequence[dict[str, Any]]:
    """The events of a stream that say the same."""
    shared = {key: body[key] for key in ("id", "object", "created", "model")}
    whole = {**shared, "choices": body["choices"]}
    return [whole, {**shared, "choices": [], "usage": body["usage"]}] if with_usage else [whole]


def _node(request: CompletionRequest) -> str:
    """No request continues it; that it has one says that it was answered."""
    return "text-" + blake2b(repr(request.prompt).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
