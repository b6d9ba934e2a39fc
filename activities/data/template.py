"""The chat template of a run's model: which one, and what it makes of a conversation.

Promises: a template is code of the model's, so whatever it raises becomes a `DataError` that names the row, the
template's file and line, and what was said.
"""

import json
import traceback
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ...schemas.config.data import TEMPLATE_SUFFIX
from ...schemas.errors import ConfigError, DataError, ModelError, one_line
from .messages import Message, arguments_of, as_object, as_text, with_arguments
from .tokenizer import ADDITIONAL_TEMPLATES, Tokenizer


class ChatTemplate:
    """`chosen` is `data.chat_template`. Raises `ConfigError` when there is nothing of that name; that there is no
    template at all matters only to prompts that are conversations."""

    def __init__(self, tokenizer: Tokenizer, model_path: str, chosen: str | None) -> None:
        self._tokenizer = tokenizer
        self._model_path = model_path
        self._named = _named(tokenizer)
        self._file = chosen if chosen and chosen.endswith(TEMPLATE_SUFFIX) else _file_of(Path(model_path), chosen)
        self.text = self._chosen(chosen)
        """None leaves the choice to the tokenizer: it may have another one for conversations with tools."""

    def render(self, where: str, messages: list[Message], tools: list[Any] | None) -> str:
        """Up to the beginning of the assistant's turn. `where` is the row and its column."""
        if not arguments_of(messages):
            return self._apply(where, messages, tools)
        # Templates want the arguments of calls in one of two forms, and none says which.
        laid_out, written = with_arguments(messages, as_object), with_arguments(messages, as_text)
        try:
            text = self._apply(where, laid_out, tools)
        except DataError as refused:
            try:
                return self._apply(where, written, tools)
            except DataError:
                raise refused from None
        return self._apply(where, written, tools) if _printed_by_python(text, arguments_of(laid_out)) else text

    @cached_property
    def shows_tools(self) -> bool:
        """Whether it does anything with the tools that it is given."""
        return any("tools" in text for text in ([self.text] if self.text is not None else self._named.values()))

    def _apply(self, where: str, messages: list[Message], tools: list[Any] | None) -> str:
        from jinja2 import TemplateError, TemplateSyntaxError

        self._require(where)
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tools=tools, chat_template=self.text, tokenize=False, add_generation_prompt=True
                )
            )
        except TemplateSyntaxError as error:
            raise ModelError(
                f"{self._file}, line {error.lineno}: not a valid chat template: {one_line(error)}"
            ) from error
        except Exception as error:  # the border to the model's own code, which may raise anything
            said = one_line(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {one_line(error)}"
            raise DataError(
                f"{where}: the model's chat template ({self._file}, line {_line(error)}) refuses the messages: {said}"
            ) from error

    def _chosen(self, chosen: str | None) -> str | None:
        if chosen is None or chosen in self._named:
            return self._named[chosen] if chosen else None
        if not chosen.endswith(TEMPLATE_SUFFIX):
            raise ConfigError(
                f"data.chat_template={chosen}: the tokenizer of model.path={self._model_path} has no template of this "
                f"name; allowed: {', '.join([*self._named, f'a file whose name ends in {TEMPLATE_SUFFIX}'])}"
            )
        try:
            return Path(chosen).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"data.chat_template={Path(chosen).absolute()} cannot be read: {error}") from error

    def _require(self, where: str) -> None:
        if self.text is not None or "default" in self._named:
            return
        if self._named:
            raise ModelError(
                f"{where} holds chat messages, and the tokenizer of model.path has several chat templates, none "
                f"of them the default; allowed: data.chat_template={' or '.join(self._named)}"
            )
        raise ModelError(
            f"{where} holds chat messages, but the tokenizer of model.path has no chat template; allowed: a model with "
            f"one, data.chat_template=FILE{TEMPLATE_SUFFIX}, or prompts as plain text"
        )


def _named(tokenizer: Tokenizer) -> dict[str, str]:
    found = tokenizer.chat_template
    if isinstance(found, Mapping):
        return {name: found[name] for name in sorted(found)}
    return {"default": found} if found else {}


def _file_of(folder: Path, name: str | None) -> str:
    """Where a model folder keeps its template, in the order in which the library looks."""
    places = ("chat_template.jinja", f"{ADDITIONAL_TEMPLATES}/{name}{TEMPLATE_SUFFIX}")
    return next((place for place in places[::-1] if (folder / place).is_file()), "tokenizer_config.json")


def _line(error: Exception) -> int | str:
    """In the template: its frames bear this name."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or "?" for frame in reversed(frames) if frame.filename == "<template>"), "?")


def _printed_by_python(text: str, arguments: list[Any]) -> bool:
    """Whether a template put an object where it expects text: `{'city': 'Oslo'}` is no JSON."""
    return any(repr(item) in text and repr(item) != json.dumps(item, ensure_ascii=False) for item in arguments)
