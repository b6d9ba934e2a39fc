"""The identity of a conversation: a hash that grows with it.

The *node* of a turn names everything said up to and including its answer, with the tools and the template's arguments.
A client need not repeat it letter by letter: the order of JSON keys, arguments as text or object, white space at line
ends, ids of tool calls (frameworks rewrite them), and reasoning (stock clients drop it) make no difference.

Each message adds to the hash of those before it, so a further message costs its own length, whatever came before.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, NewType

from .messages import ASSISTANT, Message, Said, read_messages

Node = NewType("Node", str)


class Prefix(NamedTuple):
    """The first messages of a request, up to an assistant's."""

    messages: int
    node: Node


def opening(tools: Sequence[Any] | None, arguments: Mapping[str, Any] | None) -> Node:
    """The node before the first message. No tools and an empty list of them are the same, as are no arguments."""
    return _digest("", [tools or None, arguments or None])


def after(node: Node, messages: Sequence[Message]) -> Node:
    """The node once these were said, too. Raises `ConversationRefused`."""
    for said in read_messages(messages):
        node = _digest(node, _identity(said))
    return node


def answered(
    messages: Sequence[Message], tools: Sequence[Any] | None, arguments: Mapping[str, Any] | None
) -> list[Prefix]:
    """Every prefix that ends in an assistant's message, longest first: the nodes that may be known turns. Raises
    `ConversationRefused`."""
    node = opening(tools, arguments)
    found = []
    for number, said in enumerate(read_messages(messages), start=1):
        node = _digest(node, _identity(said))
        if said.role == ASSISTANT:
            found.append(Prefix(number, node))
    return found[::-1]


def canonical_json(value: Any) -> str:
    """Equal for what JSON calls equal: sorted keys, and 1.0 written as 1 as JavaScript does."""
    return json.dumps(_whole_numbers(value), sort_keys=True, separators=(",", ":"))


def _identity(said: Said) -> list[Any]:
    text = "\n".join(line.rstrip() for line in said.text.split("\n")).rstrip()
    if said.role == ASSISTANT:
        # Frameworks strip what a model answered; nobody strips what a user or a tool said.
        return [said.role, text.lstrip(), [[call.name, call.arguments] for call in said.calls]]
    return [said.role, text, said.name if said.role != "tool" else ""]


def _digest(before: str, value: Any) -> Node:
    # JSON in ASCII: text with half a surrogate pair, which UTF-8 cannot hold, has a node, too.
    return Node(blake2b(f"{before}{canonical_json(value)}".encode("ascii"), digest_size=16).hexdigest())


def _whole_numbers(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {str(key): _whole_numbers(item) for key, item in value.items()}
        case list() | tuple():
            return [_whole_numbers(item) for item in value]
        case _:
            return value
