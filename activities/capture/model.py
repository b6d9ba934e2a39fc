"""A run's model as conversations see it: how they are rendered, and how its answers are read. Used by the gateway and
by environments. Takes seconds where a parser is asked for, since that loads vLLM."""

import copy
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, cast

from ...schemas.config import RunConfig
from ..data.template import ChatTemplate
from ..data.tokenizer import Tokenizer as AnyTokenizer
from ..data.tokenizer import load_tokenizer
from .layout import ChatTokenizer
from .message import Reader
from .render import Template
from .stops import stop_ids


class Tokenizer(ChatTokenizer, Protocol):
    eos_token_id: int | None

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class ChatModel:
    tokenizer: Tokenizer
    stop_ids: Set[int]
    template: Template
    reader: Reader

    @classmethod
    def open(cls, config: RunConfig) -> Self:
        """Raises a `UserError` when the model cannot be used for conversations."""
        agentic = config.psrl.agentic_rl
        tokenizer = chat_tokenizer(config)
        stops = stop_ids(Path(config.model.path), tokenizer)
        template = Template.open(tokenizer, stops, agentic.thinking_template)
        return cls(tokenizer, stops, template, Reader(tokenizer, stops, agentic.tool_parser, agentic.reasoning_parser))


def chat_tokenizer(config: RunConfig) -> Tokenizer:
    """With the template that the run's prompts are laid out by. Raises a `UserError`."""
    tokenizer: AnyTokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    chosen = ChatTemplate(tokenizer, config.model.path, config.data.chat_template).text
    if chosen is not None:
        tokenizer = copy.copy(tokenizer)  # it is shared with others
        tokenizer.chat_template = chosen
    return cast(Tokenizer, tokenizer)
