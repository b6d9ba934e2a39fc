"""The seam between the gateway and the capture of conversations: where a request is played, and with which tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...activities.capture.conversation import Node, after, answered, opening
from ...activities.capture.message import Answer
from ...activities.capture.tree import Branches, Decision, Tree, TurnAt
from ...activities.sessions.places import NewTurn
from ...activities.sessions.sessions import StoredSession
from ...activities.sessions.turns import KnownTurn, Sampled
from ...activities.store.branches import Fork
from .models import Model

__all__ = ["Answer", "Conversation", "Place", "TurnAt"]


@dataclass(frozen=True)
class Conversation:
    """What a request says."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] | None = None
    arguments: Mapping[str, Any] | None = None
    """Of the chat template."""
    may_call: bool = True

    @property
    def node(self) -> Node:
        return after(opening(self.tools, self.arguments), self.messages)


@dataclass(frozen=True)
class Place:
    """Where a request is played."""

    where: NewTurn
    parent: TurnAt | None
    """The turn that its context ends with."""
    known_messages: int


def place(
    model: Model, session: StoredSession, known: Sequence[KnownTurn], said: Conversation, branch: int | None
) -> Place:
    """`branch`: the one that the caller names, counted from 0. Raises `ConversationRefused`, `TurnInFlight`."""
    grown = Tree(Branches(session.episode, session.episodes), known)
    prefixes = answered(said.messages, said.tools, said.arguments)
    if branch is None and model.template.plays_apart(said.arguments):
        return _place(grown.place_apart())
    parent = grown.parent(prefixes)
    return _place(grown.place(parent) if branch is None else grown.place_on(branch, parent))


def render(model: Model, said: Conversation, at: Place, before: Sampled | None) -> list[int]:
    """What stands between the parent's tokens and the answer. Raises `ConversationRefused`."""
    if before is None:
        return model.template.first(said.messages, said.tools, said.arguments)
    # The client's own words for the answer before: the results that follow name its calls by the ids that it has.
    last, appended = said.messages[at.known_messages - 1], said.messages[at.known_messages :]
    return model.template.appended(before.token_ids, last, appended, said.tools, said.arguments)


def read(model: Model, said: Conversation, sampled: Sampled, key: str) -> tuple[Answer, Node]:
    """The message, and by which name the next request will know it."""
    tools = said.tools if said.may_call else None
    answer = model.reader.read(sampled.token_ids, sampled.end, key, tools, said.arguments)
    return answer, after(said.node, [answer.message])


def _place(decision: Decision) -> Place:
    at, forked = decision.at, decision.forked
    if forked is not None:
        return Place(NewTurn(at.index, at.turn, Fork(forked.index, forked.turn)), forked, decision.known_messages)
    if not decision.known_messages:
        return Place(NewTurn(at.index, at.turn), None, 0)
    return Place(NewTurn(at.index, at.turn), TurnAt(at.index, at.turn - 1), decision.known_messages)
