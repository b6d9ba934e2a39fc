"""Headers that go with a session and its turns: what was said when it was opened is said again with every answer."""

from collections.abc import Mapping

from ...activities.sessions.sessions import StoredSession
from ...schemas.ids import InstanceId
from .errors import bad_request

REQUEST, PROMPT, VALIDATE = "x-request-id", "x-prompt-id", "x-is-validate"
STICKY, VERSION_TAG = "x-is-sticky", "x-version-tag"
INSTANCE, RANK, PIN = "x-base-worker-id", "x-target-dp-rank", "x-force-pin-once"
BRANCH = "x-smg-tito-trajectory-id"
"""Number of the branch within its session, from 0."""
IGNORED = "x-psrl-ignored"
"""Parameters of the request that sampling did not heed."""

KEPT = (REQUEST, PROMPT, VALIDATE, STICKY, VERSION_TAG, INSTANCE, RANK)
LONGEST = 500
TRUE, FALSE = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


def labels_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Those of a request that opens a session. Raises `ApiError`."""
    labels = {name: headers[name] for name in KEPT if name in headers}
    for name, value in labels.items():
        if len(value) > LONGEST:
            raise bad_request(f"{name} is longer than {LONGEST} characters", name)
    for name in (VALIDATE, STICKY):
        flag(labels, name)
    version_tag(labels)
    return labels


def version_tag(labels: Mapping[str, str]) -> int:
    """The oldest version that may play the session; any, if nothing is said."""
    return whole(labels, VERSION_TAG) or 0


def whole(headers: Mapping[str, str], name: str) -> int | None:
    """Raises `ApiError` for what is no number."""
    value = headers.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise bad_request(f"{name}={value!r}; allowed: a whole number from 0", name)
    return int(value)


def flag(headers: Mapping[str, str], name: str, default: bool = False) -> bool:
    value = headers.get(name)
    if value is None:
        return default
    if value.lower() not in TRUE + FALSE:
        raise bad_request(f"{name}={value!r}; allowed: {', '.join(TRUE + FALSE)}", name)
    return value.lower() in TRUE


def pin_of(headers: Mapping[str, str]) -> InstanceId | None:
    """Where the caller wants the turn, for once."""
    return InstanceId(headers[INSTANCE]) if INSTANCE in headers and flag(headers, PIN) else None


def answer_headers(
    session: StoredSession, index: int, instance: InstanceId, ignored: tuple[str, ...]
) -> dict[str, str]:
    return {
        **{name: str(value) for name, value in session.labels.items()},
        VERSION_TAG: str(session.version_tag),
        BRANCH: str((index - session.episode) // session.episodes),
        INSTANCE: instance,
        **({IGNORED: ", ".join(ignored)} if ignored else {}),
    }
