"""Training arrays from records: the specified cases, and every way in which records may not fit."""

import math

import pytest

from psrl.activities.capture.arrays import TrainingArrays, TurnRecord, build_training_arrays
from psrl.schemas.errors import CaptureRefused


def turn(prompt_tokens: int, *output: int) -> TurnRecord:
    return TurnRecord(prompt_tokens, output, [-float(token) for token in output])


def test_one_turn_is_the_prompt_and_its_output() -> None:
    record = TurnRecord(3, [10, 11, 12], [-0.5, -0.3, -0.1])
    arrays = build_training_arrays([1, 2, 3, 10, 11, 12], [record], max_trim=0)
    assert arrays == TrainingArrays((1, 2, 3), (10, 11, 12), (1, 1, 1), (-0.5, -0.3, -0.1), turns=1)


def test_environment_tokens_between_two_turns_are_masked() -> None:
    records = [TurnRecord(3, [10, 11], [-0.5, -0.3]), TurnRecord(7, [30, 31], [-0.2, -0.1])]
    arrays = build_training_arrays([1, 2, 3, 10, 11, 20, 21, 30, 31], records, max_trim=0)
    assert arrays.prompt_ids == (1, 2, 3)
    assert arrays.response_ids == (10, 11, 20, 21, 30, 31)
    assert arrays.mask == (1, 1, 0, 0, 1, 1)
    assert arrays.logprobs == (-0.5, -0.3, 0, 0, -0.2, -0.1)
    assert arrays.turns == 2


def test_a_token_that_the_template_trimmed_is_not_trained_on() -> None:
    arrays = build_training_arrays([1, 2, 10, 11, 20, 30, 31], [turn(2, 10, 11, 99), turn(5, 30, 31)], max_trim=1)
    assert arrays.prompt_ids == (1, 2)
    assert arrays.response_ids == (10, 11, 20, 30, 31)
    assert arrays.mask == (1, 1, 0, 1, 1)
    assert arrays.logprobs == (-10, -11, 0, -30, -31)


def test_adjacent_turns_have_nothing_between_them() -> None:
    arrays = build_training_arrays([1, 10, 11, 20], [turn(1, 10, 11), turn(3, 20)], max_trim=0)
    assert (arrays.prompt_ids, arrays.response_ids, arrays.mask) == ((1,), (10, 11, 20), (1, 1, 1))
    assert arrays.turns == 2


def test_no_turns_are_empty_arrays() -> None:
    assert build_training_arrays([], [], max_trim=0) == TrainingArrays()


def test_a_turn_without_log_probs_is_refused() -> None:
    with pytest.raises(CaptureRefused, match="turn 0 carries no log-probs"):
        build_training_arrays([1, 2, 3], [TurnRecord(2, [], [])], max_trim=0)


def test_a_turn_in_the_middle_without_log_probs_does_not_swallow_the_environment() -> None:
    records = [TurnRecord(2, [], []), turn(5, 30)]
    with pytest.raises(CaptureRefused, match="turn 0 carries no log-probs"):
        build_training_arrays([1, 2, 10, 11, 20, 30], records, max_trim=0)


def test_log_probs_and_tokens_of_different_number_are_refused() -> None:
    with pytest.raises(CaptureRefused, match="turn 0 carries 1 log-probs for 2 tokens"):
        build_training_arrays([1, 10, 11], [TurnRecord(1, [10, 11], [-1.0])], max_trim=0)


def test_a_log_prob_that_the_engine_did_not_give_is_kept_as_it_is() -> None:
    arrays = build_training_arrays([1, 10], [TurnRecord(1, [10], [math.nan])], max_trim=0)
    assert math.isnan(arrays.logprobs[0])


def test_more_trimmed_tokens_than_allowed_are_refused() -> None:
    with pytest.raises(CaptureRefused, match="turn 0: the conversation has lost the last 2 of its 3 tokens"):
        build_training_arrays([1, 10, 20, 30], [turn(1, 10, 98, 99), turn(3, 30)], max_trim=1)


@pytest.mark.parametrize("output", [(30, 99), (30, 31, 32)])
def test_a_last_turn_that_disagrees_with_the_conversation_is_refused(output: tuple[int, ...]) -> None:
    """Also with a trim: only a turn that became history can have been trimmed."""
    with pytest.raises(CaptureRefused, match="turn 1: the conversation has lost the last 1"):
        build_training_arrays([1, 10, 20, 30, 31], [turn(1, 10), turn(3, *output)], max_trim=1)


def test_tokens_after_the_last_turn_are_refused() -> None:
    with pytest.raises(CaptureRefused, match="2 tokens come after turn 0"):
        build_training_arrays([1, 10, 20, 21], [turn(1, 10)], max_trim=0)


@pytest.mark.parametrize("second", [1, 7])
def test_a_turn_that_begins_within_another_or_beyond_the_end_is_refused(second: int) -> None:
    with pytest.raises(CaptureRefused, match=f"turn 1 has a prompt of {second} tokens|turn 0: the conversation"):
        build_training_arrays([1, 10, 11, 20], [turn(1, 10, 11), turn(second, 20)], max_trim=0)


def test_a_trimmed_token_that_equals_the_next_turns_first_is_not_counted_twice() -> None:
    arrays = build_training_arrays([1, 10, 99], [turn(1, 10, 99), turn(2, 99)], max_trim=1)
    assert (arrays.response_ids, arrays.mask, arrays.logprobs) == ((10, 99), (1, 1), (-10, -99))


def test_a_prompt_may_be_given() -> None:
    assert build_training_arrays([1, 2, 10], [turn(2, 10)], max_trim=0, prompt_override=[7]).prompt_ids == (7,)


def test_truncation_cuts_all_arrays_at_one_place() -> None:
    whole = build_training_arrays([1, 10, 11, 20, 30], [turn(1, 10, 11), turn(4, 30)], max_trim=0)
    assert whole.truncated(3) == TrainingArrays((1,), (10, 11, 20), (1, 1, 0), (-10, -11, 0), turns=2)
    assert whole.truncated(9) == whole


def test_arrays_of_different_lengths_cannot_be_made() -> None:
    with pytest.raises(CaptureRefused, match=r"\(2, 1, 2\)"):
        TrainingArrays((1,), (10, 11), (1,), (-1.0, -1.0))
