"""Which branch a request continues or begins."""

import pytest

from psrl.activities.capture.conversation import Node, Prefix
from psrl.activities.capture.tree import Branches, Decision, Tree, TurnAt
from psrl.activities.sessions.turns import KnownTurn
from psrl.schemas.errors import ConversationRefused, TurnInFlight
from psrl.schemas.messages.rollout import SegmentEnd

BRANCHES = Branches(episode=2, episodes=8)


def known(index: int, turn: int, node: str | None) -> KnownTurn:
    """In flight without a node."""
    return KnownTurn(index, turn, node, None if node is None else SegmentEnd.STOP, key="asked")


def place(turns: list[KnownTurn], *nodes: str) -> Decision:
    """`nodes`: of the request's answers, longest first, two messages each."""
    tree = Tree(BRANCHES, turns)
    return tree.place(tree.parent(prefixes(*nodes)))


def place_on(number: int, turns: list[KnownTurn], *nodes: str) -> Decision:
    tree = Tree(BRANCHES, turns)
    return tree.place_on(number, tree.parent(prefixes(*nodes)))


def prefixes(*nodes: str) -> list[Prefix]:
    return [Prefix(2 * (len(nodes) - place), Node(node)) for place, node in enumerate(nodes)]


def test_the_first_request_begins_the_episodes_own_branch() -> None:
    assert place([]) == Decision(TurnAt(2, 0))


def test_a_request_continues_the_branch_that_it_repeats() -> None:
    turns = [known(2, 0, "a"), known(2, 1, "b")]
    assert place(turns, "b", "a") == Decision(TurnAt(2, 2), known_messages=4)


def test_an_unknown_answer_at_the_end_is_appended_to_what_is_known() -> None:
    """A message of the assistant that nobody sampled here."""
    assert place([known(2, 0, "a")], "foreign", "a") == Decision(TurnAt(2, 1), known_messages=2)


def test_an_earlier_turn_asked_again_forks() -> None:
    turns = [known(2, 0, "a"), known(2, 1, "b")]
    assert place(turns, "a") == Decision(TurnAt(10, 0), forked=TurnAt(2, 0), known_messages=2)


def test_a_conversation_of_its_own_begins_a_branch_that_leaves_none() -> None:
    assert place([known(2, 0, "a")]) == Decision(TurnAt(10, 0))
    assert place([known(2, 0, "a"), known(10, 0, "x")], "never said") == Decision(TurnAt(18, 0))


def test_two_requests_side_by_side_are_two_branches() -> None:
    assert place([known(2, 0, None)]) == Decision(TurnAt(10, 0))
    turns = [known(2, 0, "a"), known(2, 1, None)]
    assert place(turns, "a") == Decision(TurnAt(10, 0), forked=TurnAt(2, 0), known_messages=2)


def test_what_was_said_twice_is_continued_on_the_lowest_branch_that_is_free() -> None:
    twice = [known(2, 0, "a"), known(10, 0, "a"), known(18, 0, "a")]
    assert place(twice, "a").at == TurnAt(2, 1)
    assert place([*twice, known(2, 1, None)], "a").at == TurnAt(10, 1)
    assert place([*twice, known(2, 1, None), known(10, 1, "b")], "a").at == TurnAt(18, 1)


def test_a_fork_of_a_fork_leaves_the_branch_whose_turn_it_repeats() -> None:
    turns = [known(2, 0, "a"), known(2, 1, "b"), known(10, 0, "c"), known(10, 1, "d")]
    assert place(turns, "c", "a") == Decision(TurnAt(18, 0), forked=TurnAt(10, 0), known_messages=4)


def test_a_template_that_renders_history_anew_gets_a_branch_per_turn() -> None:
    assert Tree(BRANCHES, [known(2, 0, "a")]).place_apart() == Decision(TurnAt(10, 0))


def test_a_named_branch_is_begun_and_continued() -> None:
    assert place_on(3, []) == Decision(TurnAt(26, 0))
    assert place_on(3, [known(26, 0, "a")], "a") == Decision(TurnAt(26, 1), known_messages=2)
    fork = Decision(TurnAt(26, 0), forked=TurnAt(2, 0), known_messages=2)
    assert place_on(3, [known(2, 0, "a"), known(2, 1, "b")], "a") == fork


def test_a_branch_is_not_named_by_a_number_beyond_those_that_the_store_can_hold() -> None:
    with pytest.raises(ConversationRefused, match="branch 10000; allowed: 0 to 9999"):
        place_on(10_000, [])


def test_a_new_branch_rests_on_no_higher_one() -> None:
    assert place_on(0, [known(10, 0, "a")], "a") == Decision(TurnAt(2, 0))


def test_a_named_branch_with_a_turn_in_flight_takes_no_other() -> None:
    with pytest.raises(TurnInFlight, match="branch 1 has turn 1 in flight"):
        place_on(1, [known(10, 0, "a"), known(10, 1, None)], "a")


def test_a_named_branch_whose_last_turn_was_given_up_is_refused_for_good_and_others_go_on() -> None:
    given_up = KnownTurn(10, 1, None, None)
    with pytest.raises(
        ConversationRefused, match=r"branch 1 ends with turn 1, which failed .*; allowed: a number not used"
    ):
        place_on(1, [known(10, 0, "a"), given_up], "a")
    fork = Decision(TurnAt(18, 0), forked=TurnAt(10, 0), known_messages=2)
    assert place_on(2, [known(10, 0, "a"), given_up], "a") == fork


def test_a_turn_whose_answer_never_reached_the_agent_is_not_in_flight() -> None:
    """Its gateway died when the engine had ended."""
    unnamed = KnownTurn(2, 1, None, SegmentEnd.STOP, "asked")
    fork = Decision(TurnAt(10, 0), forked=TurnAt(2, 0), known_messages=2)
    assert place([known(2, 0, "a"), unnamed], "a") == fork
    with pytest.raises(ConversationRefused, match="branch 0 ends with turn 1, which the messages do not repeat"):
        place_on(0, [known(2, 0, "a"), unnamed], "a")


@pytest.mark.parametrize("nodes", [(), ("a",), ("else",)])
def test_a_named_branch_whose_history_was_rewritten_is_refused(nodes: tuple[str, ...]) -> None:
    with pytest.raises(ConversationRefused, match="branch 0 ends with turn 1, which the messages do not repeat"):
        place_on(0, [known(2, 0, "a"), known(2, 1, "b")], *nodes)
