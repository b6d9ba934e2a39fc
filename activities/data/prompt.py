"""One prompt: from a row in the columns people have to rendered text, with everything a reward may want to see."""

import math
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any, NamedTuple

from ...schemas.errors import DataError, ModelError
from .rows import Row
from .tokenizer import Tokenizer


class RenderedPrompt(NamedTuple):
    """A row ready to be tokenised."""

    location: str
    text: str
    special_tokens: bool
    """The tokenizer adds its own: true for plain text, false after a chat template, which wrote them already."""
    data_source: str
    ground_truth: Any
    extra: dict[str, Any]


def render(row: Row, prompt_key: str, tokenizer: Tokenizer) -> RenderedPrompt:
    """Text goes to the model as it is; chat messages pass through the model's template, up to the assistant's turn."""
    values = dict(row.values)
    if prompt_key not in values:
        raise DataError(
            f"{row.location}: no column {prompt_key!r} (data.prompt_key); columns here: {', '.join(map(str, values))}"
        )
    prompt = values.pop(prompt_key)
    plain = isinstance(prompt, str)
    text = prompt if isinstance(prompt, str) else _apply_template(row.location, prompt_key, prompt, tokenizer)
    if not text:
        raise DataError(f"{row.location}: column {prompt_key!r} is empty")
    source = values.pop("data_source", None)
    if source is not None and not isinstance(source, str):
        raise DataError(f"{row.location}: data_source={source!r} must be text")
    ground_truth = _take_ground_truth(row.location, values)
    return RenderedPrompt(
        location=row.location,
        text=_storable(row.location, prompt_key, text),
        special_tokens=plain,
        data_source=_storable(row.location, "data_source", source or ""),
        ground_truth=_storable(row.location, "reward_model.ground_truth", ground_truth),
        extra=_storable(row.location, "row", values),
    )


def _apply_template(location: str, key: str, messages: Any, tokenizer: Tokenizer) -> str:
    from jinja2 import TemplateError

    chat = _messages(location, key, messages)
    if not tokenizer.chat_template:
        raise ModelError(
            f"{location}: column {key!r} holds chat messages, but the tokenizer of model.path has no chat template; "
            "allowed: a model with one, or prompts as plain text"
        )
    try:
        return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    except TemplateError as error:
        raise DataError(f"{location}: the model's chat template refuses the messages: {error}") from error


def _messages(location: str, key: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{location}: column {key!r} must be text or a list of chat messages, not {_short(value)}")
    chat: list[dict[str, Any]] = []
    for number, message in enumerate(value):
        if not isinstance(message, Mapping):
            raise DataError(f"{location}: message {number} of {key!r} must be an object, not {_short(message)}")
        # Parquet gives every message every field of the column; null stands for a field that is not there.
        fields = {str(name): item for name, item in message.items() if item is not None}
        for name in ("role", "content"):
            if not isinstance(fields.get(name), str):
                raise DataError(
                    f"{location}: message {number} of {key!r}: {name}={_short(fields.get(name))}; allowed: text"
                )
        chat.append(fields)
    return chat


def _take_ground_truth(location: str, values: dict[str, Any]) -> Any:
    """Takes it out of `reward_model`; what else that column holds stays in the row's extra columns."""
    reward_model = values.pop("reward_model", None)
    if reward_model is None:
        return None
    if not isinstance(reward_model, Mapping):
        raise DataError(f"{location}: reward_model={_short(reward_model)} must be an object with a ground_truth")
    rest = {name: item for name, item in reward_model.items() if name != "ground_truth"}
    if rest:
        values["reward_model"] = rest
    return reward_model.get("ground_truth")


def _storable(location: str, name: str, value: Any) -> Any:
    """The value in the form JSON and PostgreSQL can keep, refused where there is none."""
    match value:
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case str() if "\0" not in value:
            return value
        case datetime() | date() | time():
            return value.isoformat()
        case list() | tuple():
            return [_storable(location, f"{name}[{number}]", item) for number, item in enumerate(value)]
        case Mapping():
            return {str(key): _storable(location, f"{name}.{key}", item) for key, item in value.items()}
        case _:
            raise DataError(
                f"{location}: {name}={_short(value)} cannot be kept; allowed: text without NUL, finite numbers, "
                "booleans, null, dates, and lists and objects of them"
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
