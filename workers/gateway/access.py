"""Who calls, and which sessions they may reach: the token of a session opens that one, the token of a run all of its
sessions and the control of them."""

import hashlib
from collections import OrderedDict

from starlette.requests import Request

from ...activities.sessions.access import Caller
from ...activities.sessions.sessions import StoredSession
from ...schemas.ids import RunId, SessionId
from .errors import ApiError, unknown_session
from .store import Sessions

KEPT = 10_000


class Access:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._callers: OrderedDict[bytes, Caller] = OrderedDict()
        """By the digest of the token, which stands for the same caller as long as there is one."""

    async def session(self, request: Request, name: str) -> StoredSession:
        """The session of the URL. Raises `ApiError`."""
        caller = await self._caller(request)
        if caller.session_id is not None and caller.session_id != name:
            raise ApiError(403, "wrong_session", "the token opens another session")
        found = await self._sessions.find(caller.run_id, SessionId(name))
        if found is None:
            raise unknown_session(name)
        return found

    async def run(self, request: Request) -> RunId:
        """The run whose token it is. Raises `ApiError`."""
        caller = await self._caller(request)
        if caller.session_id is not None:
            raise ApiError(403, "run_token_required", "the token opens a session; this takes the token of the run")
        return caller.run_id

    async def _caller(self, request: Request) -> Caller:
        token = token_of(request)
        name = hashlib.sha256(token.encode()).digest()
        caller = self._callers.get(name)
        if caller is None:
            caller = await self._sessions.caller(token)
            if caller is None:
                raise ApiError(401, "invalid_api_key", "the token opens nothing here")
            self._callers[name] = caller
            while len(self._callers) > KEPT:
                self._callers.popitem(last=False)
        return caller


def token_of(request: Request) -> str:
    """As OpenAI's clients send it, or Anthropic's."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    if not token:
        raise ApiError(401, "invalid_api_key", "a token is needed: `Authorization: Bearer TOKEN`")
    return token
