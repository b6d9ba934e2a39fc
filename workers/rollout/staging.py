"""Verified weights on their way from the host into the engine's process: one anonymous memory file, one copy.

A memory file is not bound by the size of /dev/shm, has no name that could be left behind, and is gone with the host.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch

ALIGNMENT = 64
Entry = tuple[str, str, tuple[int, ...], int]
"""Name, dtype as in `torch.<dtype>`, shape, offset in the file."""


class StagedWeights:
    """The writing side. Use with `contextlib.closing`; making one blocks, so use a thread."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._handle = os.memfd_create("psrl-weights")
        self._layout: list[Entry] = []
        self._bytes = 0
        try:
            with open(self._handle, "wb", closefd=False) as file:
                for name, tensor in tensors.items():
                    self._bytes += -self._bytes % ALIGNMENT
                    file.seek(self._bytes)
                    self._layout.append((name, str(tensor.dtype).split(".")[1], tuple(tensor.shape), self._bytes))
                    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
                    file.write(flat.numpy().data)
                    self._bytes += flat.nbytes
                file.truncate(self._bytes)
        except BaseException:
            self.close()
            raise

    def describe(self) -> dict[str, Any]:
        """What `read_staged` in a child process of this user needs, until `close`."""
        path = f"/proc/{os.getpid()}/fd/{self._handle}"
        return {"path": path, "bytes": self._bytes, "layout": self._layout}

    def close(self) -> None:
        os.close(self._handle)


def read_staged(path: str, total: int, layout: list[Entry]) -> list[tuple[str, torch.Tensor]]:
    """The reading side: views of the mapped file, which stays mapped as long as any of them lives."""
    whole = torch.from_file(path, shared=False, size=total, dtype=torch.uint8)
    tensors = []
    for name, dtype_name, shape, offset in layout:
        dtype = getattr(torch, dtype_name)
        count = torch.Size(shape).numel() * dtype.itemsize
        tensors.append((name, whole[offset : offset + count].view(dtype).view(shape)))
    return tensors
