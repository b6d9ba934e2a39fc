"""Splitting a version into shards of bounded size, so that no step needs a second copy of the whole model."""

from collections.abc import Iterator, Mapping

import torch

SHARD_BYTES = 1 << 30


def shards(tensors: Mapping[str, torch.Tensor], limit: int = SHARD_BYTES) -> Iterator[dict[str, torch.Tensor]]:
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
