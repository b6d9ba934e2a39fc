"""One turn, from what a request says to the answer. Every step is idempotent under the request's key, so that whoever
is killed in mid-turn, and whoever asks again, gets the same turn (L8)."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...activities.sessions.places import NewTurn, PlacedTurn
from ...activities.sessions.sessions import StoredSession
from ...activities.sessions.starts import start_of
from ...activities.sessions.turns import KnownTurn, Sampled
from ...schemas.errors import EngineUnavailable, SessionClosed, TurnInFlight, Unreachable
from ...schemas.ids import InstanceId
from ...schemas.messages.rollout import Placement, RouteRequest, RouteResult, Sampling
from ...schemas.messages.sessions import AskedTurn, StartSession
from ...schemas.status import SessionStatus
from .errors import ApiError
from .metrics import Metrics
from .models import Model, Models
from .sampling import Wish, sampling_of
from .slots import Slots
from .store import Sessions
from .workflows import Workflows

log = logging.getLogger(__name__)

PLACE_ATTEMPTS = 5
"""Copies of the gateway that place turns of one session at the same time take its branches from each other."""

Route = Callable[[RouteRequest], Awaitable[RouteResult]]
"""Asks the coordinator."""


class Rendered(Protocol):
    """Where a turn goes and what it is given."""

    @property
    def where(self) -> NewTurn: ...

    @property
    def token_ids(self) -> Sequence[int]: ...

    @property
    def prompt_tokens(self) -> int:
        """Before the answer, the turns before this one included."""

    @property
    def beside(self) -> InstanceId | None:
        """The instance that has the KV cache of what came before."""


@dataclass(frozen=True)
class Request:
    """A request for a turn, whatever its dialect."""

    session: StoredSession
    model: Model
    key: Callable[[Sequence[KnownTurn]], str]
    wish: Wish
    render: Callable[[Sequence[KnownTurn]], Awaitable[Rendered]]
    """Called again when another copy of the gateway has taken the place."""
    pin: InstanceId | None = None
    """Where the caller wants it played."""


@dataclass(frozen=True)
class Played:
    """A turn that has ended."""

    key: str
    index: int
    turn: int
    prompt_tokens: int
    sampled: Sampled
    ignored: tuple[str, ...]
    """Parameters of the request that sampling did not heed."""


class Turns:
    def __init__(
        self,
        sessions: Sessions,
        workflows: Workflows,
        models: Models,
        *,
        route: Route,
        slots: Slots,
        metrics: Metrics,
    ) -> None:
        self._sessions, self._workflows, self.models, self._route = sessions, workflows, models, route
        self._slots, self._metrics = slots, metrics

    async def play(self, request: Request) -> Played:
        """Raises `ApiError` or one of our own errors."""
        with self._metrics.turn(), self._slots.one():
            async with self._slots.at_work:
                key, at, beside, prompt = await self._begun(request)
                session = request.session
                sampling, ignored = sampling_of(request.model, session.purpose, request.wish, prompt)
            if at.end is None:
                await self._sample(request, key, at, sampling, request.pin or beside)
            async with self._slots.at_work:
                sampled = await self._sessions.sampled(session, at.index, at.turn)
            return Played(key, at.index, at.turn, prompt, sampled, ignored)

    async def _begun(self, request: Request) -> tuple[str, PlacedTurn, InstanceId | None, int]:
        """Its key, its place, which is found or made, who has the KV cache of what came before, and the tokens of the
        prompt."""
        session = request.session
        known = await self._sessions.known_turns(session)
        key = request.key(known)
        found = next((turn for turn in known if turn.key == key), None)
        if found is not None:
            at, beside, prompt = PlacedTurn(found.index, found.turn, found.end), None, None
        else:
            _require_open(session)
            at, rendered = await self._place(request, key, known)
            # Another copy may have placed the same request meanwhile, and elsewhere.
            ours = at.index == rendered.where.index
            prompt, beside = rendered.prompt_tokens if ours else None, rendered.beside
        if prompt is None:
            prompt = await self._sessions.prompt_tokens(session, at.index, at.turn)
        return key, at, beside, prompt

    async def _place(self, request: Request, key: str, known: Sequence[KnownTurn]) -> tuple[PlacedTurn, Rendered]:
        for attempt in range(PLACE_ATTEMPTS):
            rendered = await request.render(known)
            _require_room(request.model, rendered.prompt_tokens)
            try:
                placed = await self._sessions.place_turn(request.session, key, rendered.where, rendered.token_ids)
            except TurnInFlight:
                if attempt == PLACE_ATTEMPTS - 1:
                    raise
                known = await self._sessions.known_turns(request.session)
            else:
                return placed, rendered
        raise AssertionError("the last attempt returns or raises")

    async def _sample(
        self, request: Request, key: str, at: PlacedTurn, sampling: Sampling, prefer: InstanceId | None
    ) -> None:
        session, model = request.session, request.model
        start = start_of(session, model.config)
        hung = session.status is SessionStatus.HUNG
        placements = () if hung else await self._placements(start, at.index, prefer)
        asked = AskedTurn(index=at.index, turn=at.turn, sampling=sampling, placements=placements)
        with self._metrics.playing():
            try:
                # A turn that failed for good gives its key to another, whose update is another one, too.
                await self._workflows.play(start, asked, f"{at.index}.{at.turn}-{key}")
            except EngineUnavailable:
                await self._sessions.give_up_turn(session, key)
                raise

    async def _placements(self, start: StartSession, index: int, prefer: InstanceId | None) -> tuple[Placement, ...]:
        """As far as there is room now: for the rest the session asks itself, and waits."""
        request = RouteRequest(
            run_id=start.run_id,
            group_id=start.group_id,
            indices=(index,),
            version_tag=start.version_tag,
            wait_s=0,
            strategy=start.rollout.strategy,
            prefer=prefer,
        )
        try:
            return (await self._route(request)).placements
        except Unreachable as error:
            log.warning("session %s is to route its turn itself: %s", start.session_id, error)
            return ()


def _require_open(session: StoredSession) -> None:
    """The workflow has the last word; a turn that it will refuse need not be placed."""
    if session.status in (SessionStatus.CLOSING, SessionStatus.CLOSED):
        raise SessionClosed(f"the session is {session.status}: {session.reason or 'it was closed'}")


def _require_room(model: Model, prompt_tokens: int) -> None:
    limit = model.config.context_tokens
    if prompt_tokens >= limit:
        raise ApiError(
            400,
            "context_length_exceeded",
            f"This model's maximum context length is {limit} tokens. Your messages resulted in {prompt_tokens} tokens, "
            "which leaves no room for an answer.",
            "messages",
        )
