"""Splitting a version into shards of bounded size, which several threads write and check at the same time."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 64 << 20
"""Measured best of 32, 64 and 128 MiB: half a gigabyte keeps every thread busy to its end; 100 GB are 1,600 files."""


def shards(tensors: "Mapping[str, torch.Tensor]", limit: int = SHARD_BYTES) -> "Iterator[dict[str, torch.Tensor]]":
    """In order of names; a shard is larger than the limit only when its one tensor is. The tensors are contiguous, in
    host memory, and share no storage, which is what safetensors can write."""
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().to("cpu").contiguous()
        if shard and size + tensor.nbytes > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard
