"""Chat messages as agents and data sets write them, in the one form that chat templates know.

A template is shown what the engine's own chat interface would show it: no content is empty text, parts are joined by
newlines, and a call's arguments are an object.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...schemas.errors import DataError
from ...schemas.text import shown
from .json_rows import loads

Message = dict[str, Any]
SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "model", "bing", "bard"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
    "system": "system",
}
"""`from` of ShareGPT, and the role it is."""
SHAREGPT_CALL = "function_call"
"""The assistant calls a tool: `value` is the call as JSON."""
MEDIA = ("image", "image_url", "input_image", "video", "video_url", "audio", "audio_url", "input_audio")
"""Types of parts that only models that see or hear understand; each also stands in a field of that name."""
LOOKS_WRITTEN = re.compile(r"""\s*\[\s*\{\s*(['"])(role|content|from|value)\1\s*:""")
MEDIA_COLUMNS = ("image", "images", "video", "videos", "audio", "audios")


class Chat(NamedTuple):
    """A conversation up to where the model is to answer."""

    messages: list[Message]
    completion: list[Message]
    """The assistant's answer that the data hold after it; empty as a rule."""


def written_as_text(prompt: str) -> list[Any] | None:
    """The messages of a conversation that somebody turned into text, as JSON or as Python prints it; None of another
    text."""
    start = prompt.lstrip()
    if not start.startswith("[") or not start[1:].lstrip().startswith("{"):
        return None
    for read in (loads, ast.literal_eval):
        try:
            found = read(prompt.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list) and all(
            isinstance(item, Mapping) and {"role", "from"} & set(item) for item in found
        ):
            return found
    return None


def looks_written(prompt: str) -> bool:
    """Whether text begins like a conversation that somebody turned into text, NumPy's way, for one, which leaves out
    the commas."""
    return LOOKS_WRITTEN.match(prompt) is not None


def refuse_media(location: str, values: Mapping[str, Any]) -> None:
    """Raises `DataError` for a row whose prompt has more than text, by the columns that veRL and TRL keep it in."""
    for name in MEDIA_COLUMNS:
        if _is_media(values.get(name)):
            raise DataError(f"{location}: column {name!r} holds images, video or sound; allowed: prompts of text alone")


def _is_media(value: Any) -> bool:
    match value:
        case bytes():
            return True
        case Mapping():
            return any(value.get(name) is not None for name in ("bytes", "path", "url"))
        case list():
            return any(_is_media(item) or isinstance(item, str) for item in value)
    return False


def read_chat(location: str, key: str, value: Any, columnar: bool) -> Chat:
    """`columnar`: as in `Row`. Raises `DataError` that names the message."""
    if not isinstance(value, list) or not value:
        raise DataError(f"{location}: column {key!r} must be text or a list of chat messages, not {shown(value)}")
    messages = [
        _message(f"{location}: message {number} of {key!r}", item, columnar) for number, item in enumerate(value)
    ]
    end = len(messages)
    while end and messages[end - 1]["role"] == "assistant":
        end -= 1
    if not end:
        raise DataError(
            f"{location}: column {key!r} holds only the assistant's messages; allowed: a message before them"
        )
    return Chat(messages[:end], messages[end:])


def _message(where: str, message: Any, columnar: bool) -> Message:
    if not isinstance(message, Mapping):
        raise DataError(f"{where} must be an object, not {shown(message)}")
    fields = {name: _decoded(item) for name, item in without_null(message, deep=columnar).items()}
    if "from" in fields and "role" not in fields:
        fields = _of_sharegpt(where, fields)
    if isinstance(fields.get("function_call"), Mapping):  # how OpenAI's interface had it before there were several
        fields["tool_calls"] = [{"type": "function", "function": fields.pop("function_call")}]
    if not isinstance(fields.get("role"), str):
        raise DataError(f"{where}: role={shown(fields.get('role'))}; allowed: text")
    calls = _calls(where, fields.pop("tool_calls", None))
    content = _content(where, fields.get("content"), optional=bool(calls))
    return {**fields, "content": content, **({"tool_calls": calls} if calls else {})}


def _of_sharegpt(where: str, fields: Message) -> Message:
    sender, value = fields.get("from"), fields.get("value")
    if sender == SHAREGPT_CALL and isinstance(value, str) and isinstance(call := parsed(value), Mapping):
        return {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]}
    if sender not in SHAREGPT_ROLES:
        raise DataError(f"{where}: from={shown(sender)}; allowed: {', '.join((*SHAREGPT_ROLES, SHAREGPT_CALL))}")
    return {"role": SHAREGPT_ROLES[sender], "content": value}


def without_null(value: Any, deep: bool) -> Any:
    """Of an object, the fields that are there; `deep`: of the objects in it, too."""
    if isinstance(value, Mapping):
        return {name: without_null(item, deep) if deep else item for name, item in value.items() if item is not None}
    if isinstance(value, list) and deep:
        return [without_null(item, deep) for item in value]
    return value


def _decoded(value: Any) -> Any:
    """Text of a file that does not say that it is text."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _content(where: str, content: Any, optional: bool) -> str:
    """As text. Only a message that calls tools may have none."""
    if isinstance(content, str):
        return content
    if content is None and optional:
        return ""
    if not isinstance(content, list):
        raise DataError(f"{where}: content={shown(content)}; allowed: text, or a list of parts of text")
    return "\n".join(_part(f"{where}, part {number}", part) for number, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        kind = part.get("type")
        if kind in MEDIA or any(part.get(name) is not None for name in MEDIA):
            raise DataError(f"{where} is of type {kind!r}: images, video and sound are not supported; allowed: text")
        if isinstance(part.get("text"), str):
            return str(part["text"])
    raise DataError(f"{where}: {shown(part)}; allowed: text, or an object with the type 'text' and a text")


def _calls(where: str, calls: Any) -> list[Message]:
    if isinstance(calls, str):
        calls = parsed(calls)
    if not calls:
        return []
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise DataError(f"{where}: tool_calls={shown(calls)}; allowed: a list of objects")
    return [dict(call) for call in calls]


def parsed(text: str) -> Any:
    """What JSON text says; text that is none is what it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def arguments_of(messages: list[Message]) -> list[Any]:
    """Of every call."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return [_function(call).get("arguments") for call in calls]


def with_arguments(messages: list[Message], form: Callable[[Any], Any]) -> list[Message]:
    """The same messages with the arguments of every call in another form."""
    return [
        {**message, "tool_calls": [_call_with(call, form) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def as_object(arguments: Any) -> Any:
    """As templates want it that lay out arguments themselves. Text that stands for no object stays text."""
    found = parsed(arguments) if isinstance(arguments, str) else arguments
    if isinstance(found, Mapping):
        return found
    return arguments or {}


def as_text(arguments: Any) -> Any:
    """As OpenAI's interface has it, for templates that put it into the prompt as it is."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _function(call: Message) -> Message:
    """Some write the function's fields into the call itself."""
    function = call.get("function")
    return dict(function) if isinstance(function, Mapping) else call


def _call_with(call: Message, form: Callable[[Any], Any]) -> Message:
    function = _function(call)
    changed = {**function, "arguments": form(function.get("arguments"))}
    return {**call, "function": changed} if isinstance(call.get("function"), Mapping) else changed
