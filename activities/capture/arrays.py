"""Training arrays from a conversation's tokens and the records of its turns, for whoever brings records of their own.

Promises (L5): what is trained on are the recorded ids, each with its recorded log-prob; everything between two turns is
the environment's and has mask 0. Records that do not fit the tokens are refused, naming the turn: nothing is guessed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from ...schemas.errors import CaptureRefused


@dataclass(frozen=True)
class TurnRecord:
    """One turn as it was captured."""

    prompt_tokens: int
    """Tokens before it: where its output begins."""
    output: Sequence[int]
    """The sampled ids."""
    logprobs: Sequence[float]


@dataclass(frozen=True)
class TrainingArrays:
    """One training sequence. The three arrays of the response have equal lengths."""

    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    mask: tuple[int, ...] = ()
    """1: sampled, 0: the environment's."""
    logprobs: tuple[float, ...] = ()
    """0.0 where the mask is 0."""
    turns: int = 0

    def __post_init__(self) -> None:
        lengths = len(self.response_ids), len(self.mask), len(self.logprobs)
        if len(set(lengths)) > 1:
            raise CaptureRefused(f"response ids, mask and log-probs have {lengths} entries; allowed: equal lengths")

    def truncated(self, response_tokens: int) -> Self:
        """The first `response_tokens` of the response: ids, mask and log-probs are cut at the same place."""
        return replace(
            self,
            response_ids=self.response_ids[:response_tokens],
            mask=self.mask[:response_tokens],
            logprobs=self.logprobs[:response_tokens],
        )


def build_training_arrays(
    accumulated: Sequence[int],
    records: Sequence[TurnRecord],
    max_trim: int,
    prompt_override: Sequence[int] | None = None,
) -> TrainingArrays:
    """`accumulated`: the whole conversation as the last turn saw and left it. `max_trim`: how many of a turn's last
    tokens the chat template may have dropped when it rendered the turn as history; they are not trained on.

    Raises `CaptureRefused`."""
    if not records:
        return TrainingArrays()
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    first = records[0].prompt_tokens
    cursor = first
    for turn, (record, end) in enumerate(_with_ends(accumulated, records)):
        start = record.prompt_tokens
        if not cursor <= start <= len(accumulated):
            raise CaptureRefused(
                f"turn {turn} has a prompt of {start} tokens; allowed: {cursor}, where the turn before it ends, to "
                f"{len(accumulated)}, where the conversation ends"
            )
        kept = _kept(turn, record, accumulated[start:end], trim=0 if turn == len(records) - 1 else max_trim)
        environment = accumulated[cursor:start]
        ids += [*environment, *record.output[:kept]]
        mask += [0] * len(environment) + [1] * kept
        logprobs += [0.0] * len(environment) + list(record.logprobs[:kept])
        cursor = start + kept
    if cursor < len(accumulated):
        raise CaptureRefused(
            f"{len(accumulated) - cursor} tokens come after turn {len(records) - 1}, the last; allowed: a conversation "
            "that ends with it"
        )
    prompt = accumulated[:first] if prompt_override is None else prompt_override
    return TrainingArrays(tuple(prompt), tuple(ids), tuple(mask), tuple(logprobs), len(records))


def _with_ends(accumulated: Sequence[int], records: Sequence[TurnRecord]) -> Iterator[tuple[TurnRecord, int]]:
    """Each turn with the place before which it ends: where the next one's output begins."""
    ends = [record.prompt_tokens for record in records[1:]]
    return zip(records, [*ends, len(accumulated)], strict=True)


def _kept(turn: int, record: TurnRecord, stands: Sequence[int], trim: int) -> int:
    """How many of the turn's tokens the conversation kept; `stands` is what it holds from the turn's beginning."""
    if not record.logprobs:
        raise CaptureRefused(f"turn {turn} carries no log-probs; allowed: one per sampled token")
    if len(record.logprobs) != len(record.output):
        raise CaptureRefused(
            f"turn {turn} carries {len(record.logprobs)} log-probs for {len(record.output)} tokens; allowed: one each"
        )
    kept = 0
    for sampled, found in zip(record.output, stands, strict=False):
        if sampled != found:
            break
        kept += 1
    if (lost := len(record.output) - kept) > trim:
        raise CaptureRefused(
            f"turn {turn}: the conversation has lost the last {lost} of its {len(record.output)} tokens, from position "
            f"{record.prompt_tokens + kept}; allowed: {trim}"
        )
    return kept
