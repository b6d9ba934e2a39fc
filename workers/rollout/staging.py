"""Verified weights on their way from the host into the engine's process: bytes in anonymous memory files.

A memory file is not bound by the size of /dev/shm, has no name that could be left behind, and is gone with the host.
"""

import os
from collections.abc import Mapping

import torch
from safetensors.torch import save

from ...activities.weights.shards import SHARD_BYTES, shards


class StagedWeights:
    """Use with `contextlib.closing`. Making one blocks: use a thread."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], shard_bytes: int = SHARD_BYTES) -> None:
        self._handles: list[int] = []
        try:
            for number, shard in enumerate(shards(tensors, shard_bytes)):
                self._handles.append(os.memfd_create(f"psrl-weights-{number}"))
                with open(self._handles[-1], "wb", closefd=False) as file:
                    file.write(save(shard))
        except BaseException:
            self.close()
            raise

    @property
    def paths(self) -> list[str]:
        """Safetensors files that child processes of this user can map until `close`."""
        return [f"/proc/{os.getpid()}/fd/{handle}" for handle in self._handles]

    def close(self) -> None:
        while self._handles:
            os.close(self._handles.pop())
