"""Text from outside (a user's exception, an answer's characters) in a form that every store takes.

PostgreSQL refuses NUL in text and in JSON, and neither its protocol nor Temporal's takes a lone surrogate. A failure
that cannot be written down would be met again by every attempt, so whatever may hold such text passes through here.
"""

MAX_REASON = 4000
"""Characters of why something ended, as it is kept in a row or in history."""
MAX_SAID = 1000
"""Characters of a failure that is one of many in a message."""
MAX_SHOWN = 80
"""Characters of a value that a message quotes."""
MAX_CAUSES = 5
"""Further errors that one was raised from: the last ones of a long chain repeat each other."""
MAX_TEXT = 100_000
"""Characters of a foreign text that are looked at: an exception may quote what it failed on, of any size."""


def storable(text: str, limit: int) -> str:
    """At most `limit` characters; what cannot be stored is spelt as an escape."""
    escaped = text[:limit].replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    return escaped[:limit]


def class_name(value: object) -> str:
    """As Python knows it: what a metaclass says of it may raise."""
    return str(type.__dict__["__name__"].__get__(type(value)))


def first_line(text: str) -> str:
    """Empty for a text without any."""
    return next(iter(text[:MAX_TEXT].strip().splitlines()), "")


def described(error: BaseException) -> str:
    """What an exception says of itself; some of a user's own cannot even do that."""
    try:
        return str(error)[:MAX_TEXT]
    except BaseException as fault:  # noqa: BLE001  (the border to user code, which may raise anything)
        return f"its text raises {class_name(fault)}"


def named(error: BaseException) -> str:
    """`ValueError: no verdict`, in one line. Of several that were raised together, also the first."""
    said = f"{class_name(error)}: {first_line(described(error))}".removesuffix(": ")
    if isinstance(error, BaseExceptionGroup):
        return f"{said}: {named(error.exceptions[0])}"
    return said


def with_causes(error: BaseException) -> str:
    """What an error says, then in one line each what it was raised from."""
    lines, seen = [described(error)], {id(error)}
    cause = _cause(error)
    while cause is not None and id(cause) not in seen and len(seen) <= MAX_CAUSES:
        seen.add(id(cause))
        lines.append(f"because of {named(cause)}")
        cause = _cause(cause)
    return "\n".join(lines)


def shown(value: object) -> str:
    """How a message quotes a value of the user's."""
    try:
        text = repr(value)
    except Exception as fault:  # noqa: BLE001  (the border to user code, which may raise anything)
        text = f"a {class_name(value)} whose repr raises {class_name(fault)}"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
