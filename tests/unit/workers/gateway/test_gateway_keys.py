"""Which turn a request asks for."""

from collections.abc import Mapping

import pytest

from psrl.activities.sessions.turns import KnownTurn
from psrl.schemas.messages.rollout import SegmentEnd
from psrl.workers.gateway.errors import ApiError
from psrl.workers.gateway.keys import turn_key

PATH, BODY = "/chat", b"{}"
RETRIED = {"x-stainless-retry-count": "1"}


def key(known: list[KnownTurn], headers: Mapping[str, str] | None = None, body: bytes = BODY) -> str:
    return turn_key(headers or {}, PATH, body, known)


FIRST = key([])
SECOND = FIRST.removesuffix("0") + "1"


def answered(name: str) -> KnownTurn:
    return KnownTurn(0, 0, "node", SegmentEnd.STOP, name)


def in_flight(name: str) -> KnownTurn:
    return KnownTurn(0, 0, None, None, name)


def played(name: str) -> KnownTurn:
    """Its gateway was killed before it was answered."""
    return KnownTurn(0, 0, None, SegmentEnd.STOP, name)


@pytest.mark.parametrize(
    ("known", "headers", "expected"),
    [
        ([], {}, FIRST),
        ([], RETRIED, FIRST),
        ([in_flight(FIRST)], {}, FIRST),
        ([in_flight(FIRST)], RETRIED, FIRST),
        ([played(FIRST)], {}, FIRST),
        ([answered(FIRST)], {}, SECOND),
        ([answered(FIRST)], RETRIED, FIRST),
        ([answered(FIRST), in_flight(SECOND)], RETRIED, SECOND),
        ([answered(FIRST), answered(SECOND)], RETRIED, SECOND),
        ([answered(FIRST)], {"x-stainless-retry-count": "none"}, SECOND),
        ([answered(FIRST)], {"x-stainless-retry-count": "9" * 5000}, SECOND),
    ],
)
def test_a_request_without_a_key_is_known_by_its_body_and_how_often_it_was_answered(
    known: list[KnownTurn], headers: dict[str, str], expected: str
) -> None:
    assert key(known, headers) == expected


def test_another_body_or_path_is_another_turn() -> None:
    assert key([], body=b"[]").split("-")[0] != FIRST.split("-")[0]
    assert turn_key({}, "/other", BODY, []) != FIRST


def test_a_clients_own_key_is_never_one_of_ours() -> None:
    assert key([answered(FIRST)], {"idempotency-key": FIRST}) == f"own-{FIRST}"


@pytest.mark.parametrize("bad", ["", "k" * 201, "a\nb"])
def test_a_key_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(ApiError, match="idempotency-key: allowed: 1 to 200 printable characters"):
        key([], {"idempotency-key": bad})
