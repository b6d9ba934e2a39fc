"""Whole conversations, message by message: what of them becomes which training sequence."""

from typing import Any

from psrl.activities.capture.render import Template
from psrl.activities.capture.tree import Branches, TurnAt
from psrl.schemas.config.agentic import ThinkingTemplate
from tests.support.chat_templates import QWEN3, QWEN25, Family, chat_tokenizer
from tests.support.conversations import CapturedSession, Message


class Session(CapturedSession):
    """Whose policy answers what the test says, letter by letter, so that its tokens are not those of the text."""

    def __init__(self, family: Family, thinking: ThinkingTemplate = ThinkingTemplate.KEEP) -> None:
        self.tokenizer = chat_tokenizer(family)
        self.end = int(self.tokenizer.convert_tokens_to_ids("<|im_end|>"))
        super().__init__(Template.open(self.tokenizer, [self.end], thinking), Branches(episode=1, episodes=4))

    def sampled(self, text: str) -> list[int]:
        return [*(int(self.tokenizer.convert_tokens_to_ids(piece)) for piece in _pieces(text)), self.end]

    def turn(self, history: list[Message], question: str, text: str) -> list[Message]:
        at = self.ask([*history, user(question)])
        return self.answer(at, self.sampled(text), {"role": "assistant", "content": text})

    def branches_and_turns(self) -> list[tuple[int, int]]:
        return sorted((at.index, at.turn) for at in self.turns)

    def read(self, ids: Any) -> str:
        return str(self.tokenizer.decode(list(ids)))


def _pieces(text: str) -> list[str]:
    """The mark is one token in every vocabulary that has it."""
    before, mark, behind = text.rpartition("</think>")
    return [*before, mark, *behind] if mark else [*text]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def test_sampled_text_is_never_tokenised_again() -> None:
    session = Session(QWEN25)
    history = session.turn([], "Where?", "river")
    session.turn(history, "And?", "look_up")
    arrays = session.arrays(1)
    assert session.tokenizer.encode("river", add_special_tokens=False) != session.sampled("river")[:-1]
    assert list(arrays.response_ids[:6]) == session.sampled("river")
    assert list(arrays.response_ids[-8:]) == session.sampled("look_up")
    assert sum(arrays.mask) == 6 + 8
    assert session.read(arrays.response_ids) == (
        "river<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\nlook_up<|im_end|>"
    )


def test_a_sub_agent_whose_turns_lie_between_the_agents_own_is_one_further_sequence() -> None:
    """Field report 91."""
    session = Session(QWEN25)
    agent = session.turn([], "Plan.", "a")
    helper = session.turn([], "Search.", "b")
    agent = session.turn(agent, "Found one.", "a")
    session.turn(helper, "More.", "b")
    session.turn(agent, "Done?", "a")
    assert session.branches_and_turns() == [(1, 0), (1, 1), (1, 2), (5, 0), (5, 1)]


def test_a_conversation_that_was_compacted_begins_a_sequence_and_its_summary_is_context() -> None:
    session = Session(QWEN25)
    session.turn(session.turn([], "Plan.", "river"), "More.", "river")
    summary = [user("Plan."), {"role": "assistant", "content": "look_up"}]
    session.turn(summary, "Go on.", "a")
    arrays = session.arrays(5)
    assert arrays.turns == 1
    assert "look_up" in session.read(arrays.prompt_ids)
    assert sum(arrays.mask) == len(arrays.response_ids) == 2


def test_a_fork_holds_the_turns_before_it_as_context() -> None:
    session = Session(QWEN25)
    first = session.turn([], "Where?", "river")
    session.turn(first, "And?", "a")
    session.turn(first, "Or?", "look_up")
    assert session.turns[TurnAt(5, 0)].forked == TurnAt(1, 0)
    fork = session.arrays(5)
    assert list(session.context(TurnAt(1, 0))) == list(fork.prompt_ids[: len(session.context(TurnAt(1, 0)))])
    assert list(fork.response_ids) == session.sampled("look_up")


def test_with_keep_a_policy_sees_its_own_reasoning() -> None:
    session = Session(QWEN3, ThinkingTemplate.KEEP)
    session.turn(session.turn([], "Where?", "</think>river"), "And?", "a")
    assert session.branches_and_turns() == [(1, 0), (1, 1)]
    assert "</think>river" in session.read(session.turns[TurnAt(1, 1)].prompt)


def test_with_fork_every_turn_has_the_history_as_the_template_renders_it() -> None:
    session = Session(QWEN3, ThinkingTemplate.FORK)
    session.turn(session.turn([], "Where?", "</think>river"), "And?", "a")
    assert session.branches_and_turns() == [(1, 0), (5, 0)]
    assert "<|im_start|>assistant\nriver<|im_end|>" in session.read(session.turns[TurnAt(5, 0)].prompt)
    assert sum(session.arrays(1).mask) + sum(session.arrays(5).mask) == len(
        session.sampled("</think>river") + session.sampled("a")
    )
