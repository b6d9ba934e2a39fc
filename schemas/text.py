"""Text from outside (a user's exception, an answer's characters) in a form that every store takes.

PostgreSQL refuses NUL in text and in JSON, and neither its protocol nor Temporal's takes a lone surrogate. A failure
that cannot be written down would be met again by every attempt, so whatever may hold such text passes through here.
"""

MAX_REASON = 4000
"""Characters of why something ended, as it is kept in a row or in history."""


def storable(text: str, limit: int) -> str:
    """At most `limit` characters; what cannot be stored is spelt as an escape."""
    escaped = text[:limit].replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    return escaped[:limit]


def first_line(text: str) -> str:
    """Empty for a text without any."""
    return next(iter(text.strip().splitlines()), "")


def described(error: BaseException) -> str:
    """What an exception says of itself; some of a user's own cannot even do that."""
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001  (the border to user code, which may raise anything)
        return f"its text raises {type(fault).__name__}"
