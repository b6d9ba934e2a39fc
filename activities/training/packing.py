"""Variable-length batches without waste: sequences of similar length share a micro-batch.

Rows are padded on the right, where causal attention cannot see the padding, so the result is that of each sequence
alone for every architecture, without a mask and on every device. (Packing several sequences into one row needs a mask
that costs more on a CPU than the padding that is left here, and trusts each model to reset its positions.) Rows
without a trainable token are left out, and so are the logits of the prompt that all rows of a micro-batch share.

The cut depends on the lengths only: a replayed step cuts as the first one did.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .batch import TrainBatch

SIMILAR = 0.75
"""Rows of a micro-batch are at least so long, relative to its longest: bounds the padding by a quarter."""
WORTH_TOKENS = 512
"""A micro-batch smaller than this is not closed for dissimilarity: the launch would cost more than the padding."""


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass takes, and where its results belong."""

    input_ids: Tensor
    """[rows, width]: the ids but each row's last, which predicts nothing; padded on the right with 0."""
    logits_to_keep: int
    """Logits are needed for the last so many columns only."""
    predicted_at: Tensor
    """For every trainable token: where its prediction is in the kept logits, flattened to [rows * kept]."""
    targets: Tensor
    """Sampled id of every trainable token."""
    tokens: Tensor
    """Index of every trainable token in the batch's token table."""


@dataclass(frozen=True)
class MiniBatch:
    """The sequences of one optimizer step."""

    micro_batches: tuple[MicroBatch, ...]
    tokens: Tensor
    """Index of all its trainable tokens in the batch's token table."""


@dataclass(frozen=True)
class BatchPlan:
    mini_batches: tuple[MiniBatch, ...]
    padding_share: float
    """Share of padding among all positions of the micro-batches."""


def plan_batch(batch: TrainBatch, mini_batch_groups: int | None, max_tokens: int, device: torch.device) -> BatchPlan:
    """Mini-batches of so many groups in batch order (null: all), each cut into micro-batches."""
    owner = batch.tokens.sequence
    starts = torch.searchsorted(owner, torch.arange(len(batch.sequences) + 1)).tolist()
    span = mini_batch_groups or max(batch.groups, 1)
    mini_batches = []
    used = padded = 0
    for first in range(0, batch.groups, span):
        rows = [
            number
            for number, sequence in enumerate(batch.sequences)
            if first <= sequence.group < first + span and starts[number] < starts[number + 1]
        ]
        lengths = [batch.sequences[row].ids.numel() - 1 for row in rows]
        micro_batches = [
            _micro_batch(batch, [rows[i] for i in cut], starts, device) for cut in cut_rows(lengths, max_tokens)
        ]
        used += sum(lengths)
        padded += sum(micro.input_ids.numel() for micro in micro_batches)
        tokens = torch.cat([micro.tokens for micro in micro_batches]) if micro_batches else owner[:0].to(device)
        mini_batches.append(MiniBatch(tuple(micro_batches), tokens))
    return BatchPlan(tuple(mini_batches), 1 - used / padded if padded else 0.0)


def cut_rows(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of `lengths` in micro-batches, longest first; each has at most `max_tokens` padded tokens, or one row."""
    cuts: list[list[int]] = []
    longest = 0
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        size = (len(cuts[-1]) if cuts else 0) * longest
        dissimilar = lengths[row] < SIMILAR * longest and size >= WORTH_TOKENS
        if not cuts or dissimilar or size + longest > max_tokens:
            cuts.append([])
            longest = lengths[row]
        cuts[-1].append(row)
    return cuts


def _micro_batch(batch: TrainBatch, rows: list[int], starts: list[int], device: torch.device) -> MicroBatch:
    ids = pad_sequence([batch.sequences[row].ids[:-1] for row in rows], batch_first=True)
    tokens = torch.cat([torch.arange(starts[row], starts[row + 1]) for row in rows])
    line = torch.repeat_interleave(torch.tensor([starts[row + 1] - starts[row] for row in rows]))
    column = batch.tokens.position[tokens] - 1
    first = int(column.min())
    kept = ids.shape[1] - first
    predicted_at = line * kept + column - first
    targets = batch.tokens.target[tokens]
    moved = (tensor.to(device) for tensor in (predicted_at, targets, tokens))
    return MicroBatch(ids.to(device), kept, *moved)
