"""One shard on disk, a safetensors file: written from the tensors' own memory, read as a private memory map.

The format is 8 bytes with the length of a JSON header, the header, and the tensors' bytes without a gap
(https://github.com/huggingface/safetensors#format). The library's own writer copies every tensor first.
"""

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.errors import InvariantViolated

if TYPE_CHECKING:
    import torch

TYPES = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"},
}
"""Names of number formats: torch's and the file's."""
NAMES = {code: name for name, code in TYPES.items()}
ALIGNMENT = 64
"""Of the tensors' bytes in the file, so that each can be used where it lies."""


def encoded(tensors: "Mapping[str, torch.Tensor]") -> list[Any]:
    """The file's content as buffers: the header, then every tensor's memory. Tensors are contiguous and on the host."""
    header: dict[str, Any] = {}
    buffers: list[Any] = []
    offset = 0
    # The widest numbers first: then every tensor lies at a multiple of its own width.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        code = TYPES.get(str(tensor.dtype).removeprefix("torch."))
        if code is None:
            raise InvariantViolated(f"tensor {name!r} is {tensor.dtype}; a version may hold {', '.join(sorted(TYPES))}")
        end = offset + tensor.nbytes
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        buffers.append(_memory(tensor))
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return [len(text).to_bytes(8, "little") + text, *buffers]


def write(file: Path, buffers: Sequence[Any]) -> None:
    """Flushed to disk when it returns."""
    with file.open("wb") as stream:
        for buffer in buffers:
            stream.write(buffer)
        stream.flush()
        os.fsync(stream.fileno())


def mapped(file: Path) -> mmap.mmap:
    """Lives as long as anything made from it, whatever becomes of the file's name. A write to it stays private."""
    with file.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)


def decoded(content: mmap.mmap) -> "dict[str, torch.Tensor]":
    """Tensors that lie in the map; they keep it alive."""
    import torch

    start = 8 + int.from_bytes(content[:8], "little")
    tensors: dict[str, torch.Tensor] = {}
    for name, entry in json.loads(content[8:start]).items():
        dtype, (begin, end) = getattr(torch, NAMES[entry["dtype"]]), entry["data_offsets"]
        flat = (
            torch.frombuffer(content, dtype=torch.uint8, count=end - begin, offset=start + begin).view(dtype)
            if end > begin
            else torch.empty(0, dtype=dtype)
        )
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def _memory(tensor: "torch.Tensor") -> Any:
    import torch

    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())
