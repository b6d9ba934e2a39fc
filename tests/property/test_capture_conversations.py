"""Agents that do anything with their conversations: what is captured stays exactly what the engine saw and sampled."""

from functools import lru_cache
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from transformers import PreTrainedTokenizerFast

from psrl.activities.capture.conversation import answered
from psrl.activities.capture.layout import Layout
from psrl.activities.capture.messages import read_messages
from psrl.activities.capture.render import Template
from psrl.activities.capture.tree import Branches, TurnAt
from tests.support.chat_templates import FAMILIES, chat_tokenizer
from tests.support.conversations import CapturedSession, Message

WORDS = st.sampled_from(["river", "arguments", "look_up", "{}", "a"])
"""Letter by letter, most are other tokens than as a word."""
REPLY = st.tuples(WORDS, st.booleans(), st.booleans())
"""Its words, whether it stops or is cut by its length, and whether the client repeats it letter by letter."""
AT_ONCE = st.one_of(REPLY, REPLY, st.none())
PICK = st.integers(0, 3)
"""Counted from the newest, which is what agents mostly go on with."""
Reply = tuple[str, bool, bool]


@lru_cache
def opened(family: str) -> tuple[PreTrainedTokenizerFast, Template, Layout]:
    tokenizer = chat_tokenizer(FAMILIES[family])
    stops = frozenset(tokenizer.convert_tokens_to_ids(list(FAMILIES[family].stops)))
    return tokenizer, Template.open(tokenizer, stops), Layout.learn(tokenizer, stops, {})


def said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


class AgentMachine(RuleBasedStateMachine):
    """`histories`: every conversation that the agent has an answer to."""

    @initialize(
        family=st.sampled_from(["qwen2.5", "llama3"]), episode=st.integers(0, 3), more=st.integers(1, 4), text=WORDS
    )
    def begin(self, family: str, episode: int, more: int, text: str) -> None:
        self.tokenizer, template, self.layout = opened(family)
        self.branches = Branches(episode, episode + more)
        self.session = CapturedSession(template, self.branches)
        self.histories: list[list[Message]] = [[said("system", text)]]
        self.in_flight: list[TurnAt] = []

    # --- what an agent does ------------------------------------------------------------------------------------------

    @rule(pick=PICK, role=st.sampled_from(["user", "tool", "system"]), text=WORDS, more=st.booleans(), reply=AT_ONCE)
    def go_on(self, pick: int, role: str, text: str, more: bool, reply: Reply | None) -> None:
        appended = [said(role, text)] + [said("user", "more")] * more
        self._ask([*self._history(pick), *appended], reply)

    @rule(pick=PICK, reply=AT_ONCE)
    @precondition(lambda self: self.session.turns)
    def ask_again(self, pick: int, reply: Reply | None) -> None:
        """A retry that the gateway takes for a new turn."""
        asked = list(self.session.turns.values())
        self._ask(list(asked[-1 - pick % len(asked)].request), reply)

    @rule(pick=PICK, lost=PICK, text=WORDS, reply=AT_ONCE)
    def roll_back(self, pick: int, lost: int, text: str, reply: Reply | None) -> None:
        history = self._history(pick)
        self._ask([*history[: max(1, len(history) - lost)], said("user", text)], reply)

    @rule(pick=PICK, place=PICK, text=WORDS, reply=AT_ONCE)
    def edit(self, pick: int, place: int, text: str, reply: Reply | None) -> None:
        history = list(self._history(pick))
        place = -1 - place % len(history)
        history[place] = {**history[place], "content": text}
        self._ask([*history, said("user", "again")], reply)

    @rule(summary=WORDS, text=WORDS, reply=AT_ONCE)
    def compact(self, summary: str, text: str, reply: Reply | None) -> None:
        """Whoever wrote the summary, it was not sampled in this session."""
        self._ask([said("user", text), said("assistant", summary), said("user", "go on")], reply)

    @rule(text=WORDS, reply=AT_ONCE)
    def start_a_sub_agent(self, text: str, reply: Reply | None) -> None:
        self._ask([said("user", text)], reply)

    # --- what the engine does ----------------------------------------------------------------------------------------

    @rule(pick=PICK, reply=REPLY)
    @precondition(lambda self: self.in_flight)
    def answer(self, pick: int, reply: Reply) -> None:
        self._answer(self.in_flight[pick % len(self.in_flight)], reply)

    # --- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def every_turn_was_sent_its_branch_and_nothing_else(self) -> None:
        for at, played in self.session.turns.items():
            whole = self.session.context(at)
            assert whole == played.prompt + played.sampled
            if at.turn:
                before = self.session.turns[TurnAt(at.index, at.turn - 1)]
                grown = before.prompt + before.sampled
                assert played.prompt[: len(grown)] == grown

    @invariant()
    def no_sampled_token_is_trained_on_twice(self) -> None:
        ended = {at.index for at in self.session.turns} - {at.index for at in self.in_flight}
        for branch in ended:
            arrays = self.session.arrays(branch)
            own = [played for at, played in sorted(self.session.turns.items()) if at.index == branch]
            trained = [token for token, bit in zip(arrays.response_ids, arrays.mask, strict=True) if bit]
            assert trained == [token for played in own for token in played.sampled]
            assert arrays.turns == len(own)

    @invariant()
    def branches_are_numbered_in_order_and_rest_on_lower_ones(self) -> None:
        indices = sorted({at.index for at in self.session.turns})
        assert indices == [self.branches.index(number) for number in range(len(indices))]
        assert len({at.index for at in self.in_flight}) == len(self.in_flight)
        for at, played in self.session.turns.items():
            if played.forked is not None:
                assert at.turn == 0
                assert played.forked.index < at.index

    def _history(self, pick: int) -> list[Message]:
        return self.histories[-1 - pick % len(self.histories)]

    def _ask(self, messages: list[Message], reply: Reply | None) -> None:
        """The engine reads what the template would have written, though nothing that was sampled is rendered."""
        repeated = self._who_said_most_of(messages)
        at = self.session.ask(messages)
        self.in_flight.append(at)
        prompt = self.session.turns[at].prompt
        wanted = self.layout.text(read_messages(messages), None, None)
        assert _without_spaces(self.tokenizer.decode(list(prompt))) == _without_spaces(wanted)
        assert not repeated or any(prompt[: len(context)] == context for context in repeated)
        if reply is not None:
            self._answer(at, reply)

    def _answer(self, at: TurnAt, reply: Reply) -> None:
        text, stops, exact = reply
        self.in_flight.remove(at)
        sampled = [self.tokenizer.convert_tokens_to_ids(letter) for letter in text]
        history = self.session.answer(at, [*sampled, *self.layout.closing[:stops]], said("assistant", text))
        content: Any = text if exact else [{"type": "text", "text": f" {text} "}]
        self.histories.append([*history[:-1], said("assistant", content)])

    def _who_said_most_of(self, messages: list[Message]) -> list[tuple[int, ...]]:
        """The contexts of the turns that said the longest known beginning of a conversation."""
        for prefix in answered(messages, None, None):
            said_it = [at for at, played in self.session.turns.items() if played.node == prefix.node]
            if said_it:
                return [self.session.context(at) for at in said_it]
        return []


def _without_spaces(text: str) -> str:
    """Clients may add some at the ends of an answer; neither the templates tried here nor anything said has others."""
    return text.replace(" ", "")


AgentMachine.TestCase.settings = hypothesis_settings(max_examples=30, stateful_step_count=20)
TestAgent = AgentMachine.TestCase
