"""A session in memory: what the gateway, the store and the engine do with a request, as far as tokens are concerned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psrl.activities.capture.arrays import TrainingArrays, TurnRecord, build_training_arrays
from psrl.activities.capture.conversation import Node, after, answered, opening
from psrl.activities.capture.render import Template
from psrl.activities.capture.tree import Branches, Tree, TurnAt
from psrl.activities.sessions.turns import KnownTurn
from psrl.schemas.messages.rollout import SegmentEnd

Message = Mapping[str, Any]


@dataclass
class PlayedTurn:
    """A turn with its two segments."""

    request: tuple[Message, ...]
    environment: tuple[int, ...]
    prompt: tuple[int, ...]
    """All that the engine was sent."""
    before: Node
    """Of the conversation up to the answer."""
    forked: TurnAt | None
    node: Node | None = None
    sampled: tuple[int, ...] = ()

    @property
    def end(self) -> SegmentEnd | None:
        return None if self.node is None else SegmentEnd.STOP


@dataclass
class CapturedSession:
    template: Template
    branches: Branches
    tools: Sequence[Any] | None = None
    turns: dict[TurnAt, PlayedTurn] = field(default_factory=dict)

    def ask(self, messages: Sequence[Message], branch: int | None = None) -> TurnAt:
        """Begins a turn; the prompt is in `turns`."""
        tree = Tree(
            self.branches, [KnownTurn(at.index, at.turn, played.node, played.end) for at, played in self.turns.items()]
        )
        parent = tree.parent(answered(messages, self.tools, None))
        apart = self.template.plays_apart()
        decision = (
            tree.place_apart() if apart else tree.place(parent) if branch is None else tree.place_on(branch, parent)
        )
        at, known = decision.at, decision.known_messages
        before = decision.forked or (TurnAt(at.index, at.turn - 1) if at.turn else None)
        if before is None:
            environment = self.template.first(messages, self.tools)
        else:
            sampled = self.turns[before].sampled
            environment = self.template.appended(sampled, messages[known - 1], messages[known:], self.tools)
        self.turns[at] = PlayedTurn(
            request=tuple(messages),
            environment=tuple(environment),
            prompt=(*(self.context(before) if before else ()), *environment),
            before=after(opening(self.tools, None), messages),
            forked=decision.forked,
        )
        return at

    def answer(self, at: TurnAt, sampled: Sequence[int], message: Message) -> list[Message]:
        """Ends a turn; returns the conversation as the agent has it now."""
        played = self.turns[at]
        played.sampled = tuple(sampled)
        played.node = after(played.before, [message])
        return [*played.request, message]

    def context(self, at: TurnAt) -> tuple[int, ...]:
        """The segments up to a turn's end, put together from those that each branch holds."""
        own = [self.turns[TurnAt(at.index, turn)] for turn in range(at.turn + 1)]
        forked = own[0].forked
        tokens = self.context(forked) if forked else ()
        for played in own:
            tokens += played.environment + played.sampled
        return tokens

    def arrays(self, branch: int) -> TrainingArrays:
        """What is trained on of a branch whose turns have all ended. Log-probs are made of the ids."""
        own = {at: played for at, played in sorted(self.turns.items()) if at.index == branch}
        records = [
            TurnRecord(len(played.prompt), played.sampled, [-float(token) for token in played.sampled])
            for played in own.values()
        ]
        return build_training_arrays(self.context(max(own)), records, max_trim=0)
