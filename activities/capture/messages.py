"""A message as any client may write it, read into one form.

Content may be text, a list of text parts, null or absent; the arguments of a tool call may be text or an object; what
an assistant reasoned may stand in `reasoning` or `reasoning_content`. What no text model can take is refused by its
path.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...schemas.errors import ConversationRefused

Message = Mapping[str, Any]
"""In the form of the chat completions protocol."""

ASSISTANT = "assistant"


class Call(NamedTuple):
    """One tool call of an assistant."""

    id: str
    name: str
    arguments: Any
    """Parsed where they are JSON, else the text as it is."""


class Said(NamedTuple):
    """One message."""

    role: str
    text: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    name: str = ""
    answers: str = ""
    """Id of the tool call whose result it is."""


def read_messages(messages: Sequence[Message], offset: int = 0) -> list[Said]:
    """Raises `ConversationRefused`. `offset`: number of the first in the request, for what is said to the caller."""
    return [_read(f"messages[{offset + number}]", message) for number, message in enumerate(messages)]


def _read(path: str, message: Message) -> Said:
    if not isinstance(message, Mapping):
        raise _refused(path, message, "an object")
    return Said(
        role=_text(f"{path}.role", message.get("role"), required=True),
        text=_content(f"{path}.content", message.get("content")),
        reasoning=_text(f"{path}.reasoning", message.get("reasoning") or message.get("reasoning_content")),
        calls=_calls(f"{path}.tool_calls", message.get("tool_calls")),
        name=_text(f"{path}.name", message.get("name")),
        answers=_text(f"{path}.tool_call_id", message.get("tool_call_id")),
    )


def _content(path: str, content: Any) -> str:
    """Parts are joined by a line end, as vLLM joins them."""
    if not isinstance(content, list):
        return _text(path, content)
    return "\n".join(_part(f"{path}[{number}]", part) for number, part in enumerate(content))


def _part(path: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        return _text(path, part)
    if part.get("type", "text") != "text":
        raise _refused(f"{path}.type", part["type"], "'text', the only kind that this model takes")
    return _text(f"{path}.text", part.get("text"))


def _calls(path: str, calls: Any) -> tuple[Call, ...]:
    if not calls:
        return ()
    if not isinstance(calls, list):
        raise _refused(path, calls, "a list")
    return tuple(_call(f"{path}[{number}]", call) for number, call in enumerate(calls))


def _call(path: str, call: Any) -> Call:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise _refused(path, call, "an object with a function")
    return Call(
        id=_text(f"{path}.id", call.get("id")),
        name=_text(f"{path}.function.name", function.get("name"), required=True),
        arguments=_parsed(function.get("arguments")),
    )


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except ValueError:  # the policy wrote them: they may be no JSON, and are what it said all the same
        return arguments


def _text(path: str, value: Any, required: bool = False) -> str:
    if isinstance(value, str) and (value or not required):
        return value
    if value is None and not required:
        return ""
    raise _refused(path, value, "text")


def _refused(path: str, value: Any, allowed: str) -> ConversationRefused:
    shown = repr(value)
    return ConversationRefused(f"{path}={shown if len(shown) <= 80 else shown[:77] + '...'}; allowed: {allowed}")
