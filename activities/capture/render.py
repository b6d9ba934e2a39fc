"""From messages to the tokens the engine gets: the first turn whole, a later one only by what was appended to it.

Token in, token out (L5): what the policy sampled stands in its context as it was sampled, and what came before is never
rendered again. Appended messages are rendered behind a stand-in for the conversation, and what follows the end of the
stand-in's answer is cut off and tokenised. So a turn costs its own length, whatever came before.

Whether a template allows this is found out by trying (`probe`), once per set of template arguments.
"""

import inspect
import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Self

from ...schemas.config.agentic import ThinkingTemplate
from ...schemas.errors import ConversationRefused, ModelError
from .conversation import canonical_json
from .layout import Arguments, ChatTokenizer, Layout, Tools
from .messages import Message, read_messages
from .probe import Finding, probe

PROBED_ARGUMENTS = 64
"""Sets of template arguments whose findings are remembered; a run has one or two."""


class Template:
    """A chat template that was probed. Safe to share between threads."""

    def __init__(self, layout: Layout, thinking: ThinkingTemplate) -> None:
        """For `open`."""
        self._layout = layout
        self._thinking = thinking
        self._findings = lru_cache(maxsize=PROBED_ARGUMENTS)(self._probed)

    @classmethod
    def open(
        cls,
        tokenizer: ChatTokenizer,
        stop_ids: Collection[int],
        thinking: ThinkingTemplate = ThinkingTemplate.KEEP,
        arguments: Arguments | None = None,
    ) -> Self:
        """`stop_ids`: the tokens at which the engine ends a turn. `arguments`: those of the requests that are expected.
        Raises `ModelError` when conversations cannot be rendered, or not as `agentic_rl.thinking_template` wants."""
        try:
            template = cls(Layout.learn(tokenizer, frozenset(stop_ids), arguments or {}), thinking)
            template._require_allowed(arguments)
        except ConversationRefused as error:
            raise ModelError(f"the chat template of model.path cannot be used: {error}") from error
        return template

    def plays_apart(self, arguments: Arguments | None = None) -> bool:
        """Every turn is a branch of its own, and rendered whole."""
        return self._thinking is ThinkingTemplate.FORK and bool(self._findings(canonical_json(arguments or {})))

    def first(
        self, messages: Sequence[Message], tools: Tools | None = None, arguments: Arguments | None = None
    ) -> list[int]:
        """The whole conversation, up to where the answer begins. Raises `ConversationRefused`."""
        self._require_allowed(arguments)
        return self._layout.tokens(self._layout.text(read_messages(messages), tools, arguments))

    def appended(
        self,
        sampled: Sequence[int],
        answer: Message,
        messages: Sequence[Message],
        tools: Tools | None = None,
        arguments: Arguments | None = None,
    ) -> list[int]:
        """What stands between a turn and the next answer, to be put behind `sampled`, the ids of that turn. `answer` is
        the message that was made of them; only its tool calls are looked at. Raises `ConversationRefused`."""
        self._require_allowed(arguments)
        calls = read_messages([answer])[0].calls
        following = self._layout.following(calls, read_messages(messages), tools, arguments)
        closing = self._layout.closing
        last = sampled[-1] if sampled else None
        if not closing:
            # The end is the mark of the next message. The policy samples it; where it chose another, both stand.
            return following[1:] if last == following[0] else following
        if last in self._layout.stop_ids:
            return following[1:]
        return [*_lacking(closing, sampled), *following[1:]]

    def _require_allowed(self, arguments: Arguments | None) -> None:
        for finding in self._findings(canonical_json(arguments or {})):
            if self._thinking not in finding.allowed:
                raise ConversationRefused(
                    f"{finding.sentence} (agentic_rl.thinking_template={self._thinking}; allowed for such a template: "
                    f"{', '.join(finding.allowed)})"
                )

    def _probed(self, arguments: str) -> tuple[Finding, ...]:
        named = json.loads(arguments)
        ours = {"messages", *inspect.signature(self._layout.tokenizer.apply_chat_template).parameters}
        if taken := sorted(ours & set(named)):
            raise ConversationRefused(
                f"chat_template_kwargs.{taken[0]} is not the caller's to set; allowed: what the chat template "
                "itself asks for"
            )
        return probe(self._layout, named)


def _lacking(closing: Sequence[int], sampled: Sequence[int]) -> Sequence[int]:
    """What a turn that ended by its length has not said of its own end."""
    for said in range(len(closing) - 1, 0, -1):
        if list(sampled[-said:]) == list(closing[:said]):
            return closing[said:]
    return closing
