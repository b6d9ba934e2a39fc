"""Training arrays of random conversations, with what a template trims of the turns that became history."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrl.activities.capture.arrays import TrainingArrays, TurnRecord, build_training_arrays
from psrl.schemas.errors import CaptureRefused

ENVIRONMENT, SAMPLED, LOST = st.integers(0, 9), st.integers(10, 19), 99


class Played(NamedTuple):
    """A turn: what came before it, what it sampled and kept, and how much of its end was trimmed."""

    environment: list[int]
    kept: list[int]
    lost: int


TURNS = st.lists(
    st.builds(
        Played,
        environment=st.lists(ENVIRONMENT, max_size=4),
        kept=st.lists(SAMPLED, min_size=1, max_size=4),
        lost=st.integers(0, 2),
    ),
    min_size=1,
    max_size=5,
)


def logprob(token: int) -> float:
    return -1.0 - token


def captured(turns: list[Played]) -> tuple[list[int], list[TurnRecord]]:
    """The last turn is never trimmed: nothing came after it."""
    conversation: list[int] = []
    records = []
    for number, turn in enumerate(turns):
        conversation += turn.environment
        output = turn.kept + [LOST] * (turn.lost if number < len(turns) - 1 else 0)
        records.append(TurnRecord(len(conversation), output, [logprob(token) for token in output]))
        conversation += turn.kept
    return conversation, records


@given(turns=TURNS)
def test_what_was_sampled_and_kept_is_trained_on_and_nothing_else(turns: list[Played]) -> None:
    conversation, records = captured(turns)
    arrays = build_training_arrays(conversation, records, max_trim=2)
    assert [*arrays.prompt_ids, *arrays.response_ids] == conversation
    assert list(arrays.prompt_ids) == turns[0].environment
    assert arrays.mask == tuple(int(token >= 10) for token in arrays.response_ids)
    assert arrays.logprobs == tuple(logprob(token) if token >= 10 else 0.0 for token in arrays.response_ids)
    assert arrays.turns == len(turns)


@given(turns=TURNS, data=st.data())
def test_a_token_that_is_not_what_was_sampled_is_refused_naming_its_turn(
    turns: list[Played], data: st.DataObject
) -> None:
    conversation, records = captured([turn._replace(lost=0) for turn in turns])
    number = data.draw(st.integers(0, len(records) - 1))
    place = data.draw(st.integers(0, len(records[number].output) - 1))
    changed = conversation.copy()
    changed[records[number].prompt_tokens + place] = LOST
    with pytest.raises(CaptureRefused, match=f"turn {number}: the conversation has lost"):
        build_training_arrays(changed, records, max_trim=0)


@given(turns=TURNS, bound=st.integers(0, 20))
def test_truncated_arrays_are_a_beginning_of_the_whole(turns: list[Played], bound: int) -> None:
    whole = build_training_arrays(*captured(turns), max_trim=2)
    cut = whole.truncated(bound)
    assert len(cut.response_ids) == min(bound, len(whole.response_ids))
    rest = TrainingArrays(
        whole.prompt_ids,
        cut.response_ids + whole.response_ids[bound:],
        cut.mask + whole.mask[bound:],
        cut.logprobs + whole.logprobs[bound:],
        whole.turns,
    )
    assert rest == whole
