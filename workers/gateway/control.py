"""Sessions opened, looked at, closed, hung and continued over HTTP."""

import asyncio
import hashlib
import hmac
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ...activities.sessions.sessions import NewSession, StoredSession
from ...activities.sessions.starts import start_of
from ...activities.sessions.view import BranchView
from ...schemas.ids import GroupId, InstanceId, RunId, SessionId
from ...schemas.messages.sessions import CloseSession, ContinueSession, HangSession
from ...schemas.status import SessionStatus
from .labels import labels_of, version_tag
from .models import Models
from .store import Sessions
from .workflows import Workflows

AT_ONCE = 16


class Named(BaseModel):
    """A session in a request for several; a bare id stands for one without an instance."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    session_id: SessionId
    base_worker_id: InstanceId | None = None
    reason: str = Field(default="", max_length=500)


class Many(BaseModel):
    sessions: list[Named | str]


ASKED: TypeAdapter[Many | list[Named | str]] = TypeAdapter(Many | list[Named | str])


class Control:
    def __init__(self, sessions: Sessions, workflows: Workflows, models: Models) -> None:
        self._sessions, self._workflows, self._models = sessions, workflows, models

    async def open(self, run_id: RunId, run_token: str, headers: dict[str, str]) -> dict[str, Any]:
        """A session for no batch. Repeated with the same `Idempotency-Key` it opens one."""
        labels = labels_of(headers)
        model = await self._models.of(run_id)
        asked = headers.get("idempotency-key") or uuid4().hex
        group = GroupId(f"outside-{_digest(asked.encode())[:16]}")
        # Made of what only the caller and the store know: the answer to a repeated request has the same one.
        token = hmac.new(run_token.encode(), group.encode(), hashlib.sha256).hexdigest()
        new = NewSession(run_id, group, episode=0, episodes=1, token=token, labels=labels)
        name = await self._sessions.open(new, version_tag(labels))
        session = await self._found(run_id, name)
        await self._workflows.start(start_of(session, model.config))
        return {"session_id": name, "token": token, "url": f"/sessions/{name}/v1", "model": model.names[0]}

    async def show(self, session: StoredSession) -> dict[str, Any]:
        record = await self._workflows.record(session.run_id, session.session_id)
        branches = await self._sessions.branches(session)
        return {
            "run_id": session.run_id,
            "session_id": session.session_id,
            "status": record.status if record else session.status,
            "hang_pending": record.hang_pending if record else False,
            "reason": record.reason if record else session.reason,
            "version_tag": session.version_tag,
            "labels": session.labels,
            "max_trim_tokens": 0,
            "trajectories": [_branch(session, branch) for branch in branches],
        }

    async def close(self, session: StoredSession) -> dict[str, Any]:
        """Returns when the turns in flight have ended, or were cut at the session's limit."""
        run_id, name = session.run_id, session.session_id
        if session.status is not SessionStatus.CLOSED:
            model = await self._models.of(run_id)
            await self._workflows.see_closed(start_of(session, model.config), CloseSession(reason="deleted"))
        return await self.show(await self._found(run_id, name))

    async def listed(self, run_id: RunId) -> list[dict[str, Any]]:
        """Every session that is not closed."""
        return [
            {
                "session_id": one.session_id,
                "base_worker_id": one.instance,
                "status": "generate" if one.turns_in_flight else "env",
                "hang_state": "hung" if one.status == SessionStatus.HUNG else "running",
                "inflight": one.turns_in_flight,
                "total_tokens": one.tokens,
                "closing": one.status == SessionStatus.CLOSING,
            }
            for one in await self._sessions.open_sessions(run_id)
        ]

    async def hang(self, run_id: RunId, asked: Sequence[Named]) -> dict[str, list[str]]:
        """Which hang, which will when their turn in flight has ended, and which do not run."""
        states = await self._each(asked, lambda one: self._hang(run_id, one))
        return _sorted(asked, states, ("hung", "deferred", "missing"))

    async def go_on(self, run_id: RunId, asked: Sequence[Named]) -> dict[str, list[str]]:
        states = await self._each(asked, lambda one: self._go_on(run_id, one))
        return _sorted(asked, states, ("continued", "missing"))

    async def _hang(self, run_id: RunId, one: Named) -> str:
        if not await self._workflows.hang(run_id, one.session_id, HangSession(reason=one.reason)):
            return "missing"
        record = await self._workflows.record(run_id, one.session_id)
        if record is None or record.status in (SessionStatus.CLOSING, SessionStatus.CLOSED):
            return "missing"
        return "deferred" if record.hang_pending else "hung"

    async def _go_on(self, run_id: RunId, one: Named) -> str:
        request = ContinueSession(instance=one.base_worker_id)
        return "continued" if await self._workflows.go_on(run_id, one.session_id, request) else "missing"

    async def _each(self, asked: Sequence[Named], call: Callable[[Named], Awaitable[str]]) -> list[str]:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(named: Named) -> str:
            async with limit:
                return await call(named)

        return await asyncio.gather(*(one(named) for named in asked))

    async def _found(self, run_id: RunId, name: SessionId) -> StoredSession:
        found = await self._sessions.find(run_id, name)
        assert found is not None, "a session's row is never removed while its run is there"
        return found


def named(body: Any) -> list[Named]:
    """Of a request's body: `["ID", …]`, `[{"session_id": "ID"}, …]`, or either as `{"sessions": …}`. Raises
    `ValidationError`."""
    asked = ASKED.validate_python(body)
    items = asked.sessions if isinstance(asked, Many) else asked
    return [Named(session_id=SessionId(item)) if isinstance(item, str) else item for item in items]


def _branch(session: StoredSession, branch: BranchView) -> dict[str, Any]:
    number = (branch.index - session.episode) // session.episodes
    return {
        "trajectory_id": str(number),
        "index": branch.index,
        "forked": branch.forked and {"index": branch.forked.index, "turn": branch.forked.turn},
        "accumulated_token_ids": branch.token_ids,
        "records": [
            {
                "turn": turn.turn,
                "prompt_token_count": turn.prompt_tokens,
                "output_token_ids": turn.token_ids,
                "output_logprobs": [None if math.isnan(value) else value for value in turn.logprobs],
                "versions": turn.versions,
                "instances": turn.instances,
                "finish_reason": turn.end,
            }
            for turn in branch.turns
        ],
    }


def _sorted(asked: Sequence[Named], states: Sequence[str], kinds: Sequence[str]) -> dict[str, list[str]]:
    pairs = list(zip(asked, states, strict=True))
    return {kind: [one.session_id for one, state in pairs if state == kind] for kind in kinds}


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
