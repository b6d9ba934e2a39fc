"""Which turn a request asks for: a new one, or one that was asked for before (L8).

Without a key of the client's own, a turn is known by the request's path and body, which holds the whole history, and by
how often that body was answered. A repeated request whose turn has not been answered gets that turn; one that says that
it is repeated (`x-stainless-retry-count`) gets the answer to the one before; else it is a new turn.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from ...activities.sessions.turns import KnownTurn
from .errors import bad_request

HEADER = "idempotency-key"
RETRIES = "x-stainless-retry-count"
MAX_KEY = 200


def turn_key(headers: Mapping[str, str], path: str, body: bytes, known: Sequence[KnownTurn]) -> str:
    """Raises `ApiError`."""
    if HEADER in headers:
        return _own(headers[HEADER])
    base = blake2b(path.encode() + b"\0" + body, digest_size=16).hexdigest()
    turns = {turn.key: turn for turn in known}
    answered = 0
    while (turn := turns.get(f"{base}-{answered}")) is not None and turn.node is not None:
        answered += 1
    asked_again = answered > 0 and f"{base}-{answered}" not in turns and _retries(headers) > 0
    return f"{base}-{answered - 1 if asked_again else answered}"


def _own(key: str) -> str:
    if not 0 < len(key) <= MAX_KEY or not key.isprintable():
        raise bad_request(f"{HEADER}: allowed: 1 to {MAX_KEY} printable characters", HEADER)
    return f"own-{key}"


def _retries(headers: Mapping[str, str]) -> int:
    value = headers.get(RETRIES, "0")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0
