"""A training batch in memory: sequences as sampled, and the table of the tokens that can be trained on."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...schemas.errors import InvariantViolated

NO_VERSION = -1
"""In `SampledSequence.versions`: of a token that no engine sampled."""


@dataclass(frozen=True)
class SampledSequence:
    """One trajectory: exactly the ids the engine saw and sampled (L5). `rollout`, `versions` and `mask` have one entry
    per token of the response, which is all that follows the prompt: sampled tokens, the environment's, and those of
    another branch of the episode that this one left."""

    group: int
    """Number of its group within the batch, from 0 in batch order."""
    episode: int
    """Number of its episode within the group. All sequences of an episode have its reward."""
    prompt_tokens: int
    """0 for an outside agent's, whose first turn begins with what the agent says."""
    ids: Tensor
    """int64, prompt and response."""
    rollout: Tensor
    """float32, the engine's log-prob; NaN where it gave none, as for every token of the context."""
    reward: float | None
    """None: failed or missing, which is not 0.0."""
    versions: Tensor
    """int32, the version that sampled the token, or `NO_VERSION`."""
    mask: Tensor
    """bool: the token was sampled here. All others are context, and never trained on."""
    truncated: bool = False
    """The token budget cut its episode."""

    def __post_init__(self) -> None:
        lengths = {
            "ids": self.ids.numel() - self.prompt_tokens,
            "log-probs": self.rollout.numel(),
            "versions": self.versions.numel(),
            "mask": self.mask.numel(),
        }
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise InvariantViolated(f"L5: the response of a trajectory of group {self.group} of the batch has {told}")


@dataclass(frozen=True)
class TokenTable:
    """The trainable tokens of a batch, sequence by sequence, one entry per token in every column.

    Left out: tokens of the context, sampled tokens whose engine log-prob is missing or not finite or that nothing comes
    before (counted), all tokens of sequences without a reward, and of truncated ones where these are masked.
    """

    sequence: Tensor
    """int64, the sequence it belongs to."""
    position: Tensor
    """int64, its position in the sequence's ids; the model predicts it at the position before."""
    target: Tensor
    """int64, the sampled id."""
    rollout: Tensor
    """float32, the engine's log-prob."""
    untrainable: int
    """Sampled tokens of rewarded sequences that were left out."""

    def __len__(self) -> int:
        return int(self.target.numel())


@dataclass(frozen=True)
class TrainBatch:
    sequences: tuple[SampledSequence, ...]
    """In order of (group, index)."""
    mask_truncated: bool = False
    """Train on no token of a truncated episode. Its reward still counts in its group."""

    @cached_property
    def masked(self) -> int:
        """Rewarded episodes that are left out as truncated."""
        return sum(s.reward is not None and s.truncated for s in self.firsts) if self.mask_truncated else 0

    @cached_property
    def episodes(self) -> tuple[int, ...]:
        """Of every sequence, the number of its episode within the batch: from 0, in order of their first sequences."""
        numbers: dict[tuple[int, int], int] = {}
        return tuple(numbers.setdefault((s.group, s.episode), len(numbers)) for s in self.sequences)

    @cached_property
    def firsts(self) -> tuple[SampledSequence, ...]:
        """The first sequence of every episode."""
        found: dict[int, SampledSequence] = {}
        for number, sequence in zip(self.episodes, self.sequences, strict=True):
            found.setdefault(number, sequence)
        return tuple(found.values())

    @cached_property
    def groups(self) -> int:
        return 1 + max((s.group for s in self.sequences), default=-1)

    @cached_property
    def tokens(self) -> TokenTable:
        columns: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        untrainable = 0
        for number, sequence in enumerate(self.sequences):
            if sequence.reward is None:
                continue
            known = (sequence.mask & sequence.rollout.isfinite()).nonzero().squeeze(1)
            position = known + sequence.prompt_tokens
            known, position = known[position > 0], position[position > 0]
            untrainable += int(sequence.mask.sum()) - known.numel()
            if self.mask_truncated and sequence.truncated:
                continue
            owner = torch.full_like(position, number)
            columns.append((owner, position, sequence.ids[position], sequence.rollout[known]))
        empty = torch.empty(0, dtype=torch.int64)
        columns.append((empty, empty, empty, torch.empty(0)))
        owner, position, target, rollout = (torch.cat(column) for column in zip(*columns, strict=True))
        return TokenTable(owner, position, target, rollout, untrainable)
