"""What a tokenizer's chat template writes, and where in it an answer ends.

Learnt once by trying, since a template is a program and says nothing about itself. Used by `render` and `probe` only.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from ...schemas.errors import ConversationRefused, ModelError, one_line
from .conversation import canonical_json
from .messages import ASSISTANT, Call, Said

Tools = Sequence[Any]
Arguments = Mapping[str, Any]
"""Of the template, such as `enable_thinking`."""

GREETING = Said("user", "Hello.")
TRIED_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
TRIED_CALL = Call("call00001", "look_up", {"word": "river"})
"""Its id has nine letters and digits: Mistral's templates take no other."""
TRIED_RESULT = Said("tool", "water that flows", name="look_up", answers="call00001")


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...

    def __call__(self, text: str, add_special_tokens: bool, verbose: bool) -> Any: ...

    def apply_chat_template(self, conversation: list[dict[str, Any]], **arguments: Any) -> Any: ...

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str: ...


@dataclass(frozen=True)
class Layout:
    """A chat template with what is known of it."""

    tokenizer: ChatTokenizer
    stop_ids: AbstractSet[int]
    """Tokens at which the engine ends a turn."""
    ends: AbstractSet[int]
    """Tokens of which the first behind an answer ends it."""
    closing: tuple[int, ...] = ()
    """What the template writes right behind an answer, up to the token that ends it. Empty where that token is the mark
    of the next message, as with GLM."""
    parsed_calls: bool = True
    """The template takes the arguments of a tool call as an object; else as text."""

    @classmethod
    def learn(cls, tokenizer: ChatTokenizer, stop_ids: AbstractSet[int], arguments: Arguments) -> Self:
        """Raises `ModelError` when an answer does not end with a token at which the engine stops, and
        `ConversationRefused` when the template does not even take a greeting."""
        layout = cls(tokenizer, stop_ids, ends=stop_ids)
        mark = unused_mark()
        answered = layout.text([GREETING, Said(ASSISTANT, mark)], None, arguments, prompts=False)
        behind = layout.tokens(answered.rpartition(mark)[2])
        if (end := _first_of(stop_ids, behind)) is not None:
            layout = replace(layout, closing=tuple(behind[: end + 1]))
        else:
            special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
            layout = replace(layout, ends=special | stop_ids)
            layout._require_a_stop(arguments)
        return replace(layout, parsed_calls=layout._takes_parsed_calls(arguments))

    def following(
        self, calls: Sequence[Call], messages: Sequence[Said], tools: Tools | None, arguments: Arguments | None
    ) -> list[int]:
        """The tokens from the end of an answer with these calls up to where the next begins; the first ends the answer.
        Rendered behind a stand-in for the conversation. Raises `ConversationRefused`."""
        mark = unused_mark(messages, tools)
        # Ids and names of calls may show in what follows them, arguments do not. The mark is among these as well, for
        # templates that leave out an answer's text beside calls.
        marked = tuple(call._replace(arguments={mark: ""}) for call in calls)
        text = self.text([GREETING, Said(ASSISTANT, mark, calls=marked), *messages], tools, arguments)
        _, found, behind = text.rpartition(mark)
        ids = self.tokens(behind)
        end = _first_of(self.ends, ids)
        if not found or end is None:
            raise ConversationRefused("the chat template does not show where an answer before these messages ends")
        return ids[end:]

    def text(
        self, messages: Sequence[Said], tools: Tools | None, arguments: Arguments | None, prompts: bool = True
    ) -> str:
        """`prompts`: up to where the next answer begins. Raises `ConversationRefused`."""
        chat = [self._for_template(said) for said in messages]
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    chat,
                    **(arguments or {}),
                    tools=list(tools) if tools else None,
                    tokenize=False,
                    add_generation_prompt=prompts,
                )
            )
        except Exception as error:  # a template is somebody's program and raises anything
            raise ConversationRefused(f"the chat template refuses the messages: {one_line(error)}") from error

    def tokens(self, text: str) -> list[int]:
        """The template wrote the special tokens; the tokenizer adds none."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _for_template(self, said: Said) -> dict[str, Any]:
        message: dict[str, Any] = {"role": said.role, "content": said.text}
        if said.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": self._written(call)}}
                for call in said.calls
            ]
        if said.reasoning:
            # Some templates read the one, some the other.
            message |= {"reasoning_content": said.reasoning, "reasoning": said.reasoning}
        if said.name:
            message["name"] = said.name
        if said.answers:
            message["tool_call_id"] = said.answers
        return message

    def _written(self, call: Call) -> Any:
        return (
            call.arguments if self.parsed_calls or isinstance(call.arguments, str) else canonical_json(call.arguments)
        )

    def _takes_parsed_calls(self, arguments: Arguments) -> bool:
        """True also for a template that takes no calls at all: requests with calls are refused when they come."""
        conversation = [GREETING, Said(ASSISTANT, "", calls=(TRIED_CALL,)), TRIED_RESULT]
        for parsed in (True, False):
            try:
                replace(self, parsed_calls=parsed).text(conversation, [TRIED_TOOL], arguments)
            except ConversationRefused:
                continue
            return parsed
        return True

    def _require_a_stop(self, arguments: Arguments) -> None:
        allowed = sorted(self.tokenizer.decode([number], skip_special_tokens=False) for number in self.stop_ids)
        try:
            end = self.following((), [GREETING], None, arguments)[0]
        except ConversationRefused:
            shown = "no token of its own"
        else:
            if end in self.stop_ids:
                return
            shown = repr(self.tokenizer.decode([end], skip_special_tokens=False))
        raise ModelError(
            f"the chat template of model.path ends an answer with {shown}; allowed: a token at which the engine stops, "
            f"which are {', '.join(map(repr, allowed))} (eos_token_id in generation_config.json)"
        )


def unused_mark(*texts: object) -> str:
    """A word that stands in none of them."""
    there = str(texts)
    mark = "stand-in"
    while mark in there:
        mark += "n"
    return mark


def _first_of(wanted: AbstractSet[int], ids: Sequence[int]) -> int | None:
    return next((place for place, token in enumerate(ids) if token in wanted), None)
