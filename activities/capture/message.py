"""From sampled tokens back to the message that the agent gets, with reasoning and tool calls told apart by vLLM's own
parsers. Without a parser the message is the text, whole.

Promises: the same tokens under the same key give the same message, ids of tool calls included, so that an answer can be
made again from the store; and a client that repeats the message in its history gets the same node (`conversation`).
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from ...schemas.errors import ConversationRefused, ModelError, nearest, one_line
from ...schemas.messages.rollout import SegmentEnd
from .layout import Arguments, ChatTokenizer, Tools
from .messages import ASSISTANT

log = logging.getLogger(__name__)

CALL_ID_LENGTH = 9
"""Mistral's templates take no other; no framework minds."""


class Answer(NamedTuple):
    """What a turn says, in the form of the chat completions protocol."""

    message: dict[str, Any]
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""


class Reader:
    """Reads answers of one model. Loads vLLM when a parser is asked for, which takes seconds."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        stop_ids: Collection[int],
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        """Parsers are named as for `vllm serve`. Raises `ModelError` for one that vLLM does not have, or that needs
        tokens which this tokenizer lacks."""
        self._tokenizer = tokenizer
        self._stop_ids = frozenset(stop_ids)
        self._parser = _load_parser(tokenizer, tool_parser, reasoning_parser)

    def read(
        self,
        sampled: Sequence[int],
        end: SegmentEnd,
        key: str,
        tools: Tools | None = None,
        arguments: Arguments | None = None,
    ) -> Answer:
        """`key`: names the turn; ids of tool calls are made of it. `tools`: null where the request forbids calls.
        `arguments`: of the template; by them some parsers know whether the answer begins with reasoning. Raises
        `ConversationRefused` for tools that the protocol does not know."""
        ended = bool(sampled) and sampled[-1] in self._stop_ids
        # A parser needs the special tokens that mark calls and reasoning; nobody else wants to read them.
        text = self._tokenizer.decode(list(sampled[: -1 if ended else None]), self._parser is None)
        reasoning, content, calls = self._parsed(text, sampled, tools, arguments)
        message: dict[str, Any] = {"role": ASSISTANT, "content": (content or None) if calls else content or ""}
        if reasoning:
            message["reasoning"] = reasoning
        if calls:
            message["tool_calls"] = [
                {"id": _call_id(call.id, text, key, number), "type": "function", "function": _function(call)}
                for number, call in enumerate(calls)
            ]
        return Answer(message, "tool_calls" if calls and end is SegmentEnd.STOP else end.value)

    def _parsed(
        self, text: str, sampled: Sequence[int], tools: Tools | None, arguments: Arguments | None
    ) -> tuple[str | None, str | None, Sequence[Any]]:
        """Reasoning, content and calls."""
        if self._parser is None:
            return None, text, ()
        request = _request(tools)
        parser = self._parser(self._tokenizer, request.tools, chat_template_kwargs=dict(arguments or {}))
        try:
            reasoning, content, calls = parser.parse(
                text, request, enable_auto_tools=True, model_output_token_ids=list(sampled)
            )
        except Exception:  # a policy in training writes anything, and a parser raises anything on it
            log.warning("an answer that the parsers cannot read is given to the agent as text", exc_info=True)
            return None, text, ()
        return reasoning, content, calls or ()


def _load_parser(tokenizer: ChatTokenizer, tool_parser: str | None, reasoning_parser: str | None) -> Any:
    if tool_parser is None and reasoning_parser is None:
        return None
    from vllm.parser.parser_manager import ParserManager
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    _require_known("tool_parser", tool_parser, ToolParserManager.list_registered())
    _require_known("reasoning_parser", reasoning_parser, ReasoningParserManager.list_registered())
    try:
        return ParserManager.get_parser(
            tool_parser_name=tool_parser,
            reasoning_parser_name=reasoning_parser,
            enable_auto_tools=True,
            tokenizer=tokenizer,
        )
    except TypeError as error:
        cause = one_line(error.__cause__ or error)
        raise ModelError(f"tool_parser={tool_parser} and reasoning_parser={reasoning_parser}: {cause}") from error


def _require_known(key: str, name: str | None, known: Sequence[str]) -> None:
    if name is not None and name not in known:
        raise ModelError(f"{key}={name!r} is none of vLLM's{nearest(name, known)}; allowed: {', '.join(known)}")


def _request(tools: Tools | None) -> Any:
    """What the parsers want to know of the request. They read a choice as constrained decoding would have written it;
    the policy samples freely, so whatever the request demands, a call is looked for as if it were free to make one."""
    from pydantic import ValidationError
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    try:
        return ChatCompletionRequest(messages=[], tools=tools or None, tool_choice="auto" if tools else "none")
    except ValidationError as error:
        raise ConversationRefused(f"tools: {one_line(error)}") from error


def _call_id(given: str | None, text: str, key: str, number: int) -> str:
    """An id that the policy wrote itself is kept (Kimi's templates need theirs). The parsers make up the others at
    random; ours are the same whenever the answer is made."""
    if given and given in text:
        return given
    return blake2b(f"{key}/{number}".encode(), digest_size=16).hexdigest()[:CALL_ID_LENGTH]


def _function(call: Any) -> Mapping[str, str]:
    return {"name": call.name, "arguments": call.arguments}
