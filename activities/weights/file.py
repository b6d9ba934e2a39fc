"""The `file` transport: one folder of safetensors per version under a directory that trainer and engines share.

`ROOT/RUN/v000012/` holds the shards and their manifest. It is made under a temporary name, flushed to disk and renamed:
a crash leaves either the whole version or a temporary folder that `remove` sweeps. Reads are memory-mapped.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ...schemas.errors import InvariantViolated, WeightsRefused
from ...schemas.ids import RunId, Version
from ...schemas.weights import ShardInfo, WeightManifest, WeightProbe
from .room import room
from .shards import SHARD_BYTES, shards
from .stored import MANIFEST_FILE, named, sha256, verify, version_folder


class FileTransport:
    name = "file"

    def __init__(self, root: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._root = root
        self._shard_bytes = shard_bytes

    def write(
        self, run_id: RunId, version: Version, tensors: Mapping[str, torch.Tensor], probe: WeightProbe
    ) -> WeightManifest:
        place = self._place(run_id, version)
        with room(place.parent, sum(tensor.nbytes for tensor in tensors.values())):
            return self._write(place, run_id, version, tensors, probe)

    def _write(
        self,
        place: Path,
        run_id: RunId,
        version: Version,
        tensors: Mapping[str, torch.Tensor],
        probe: WeightProbe,
    ) -> WeightManifest:
        scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        try:
            written = tuple(
                _write_shard(scratch / f"shard-{number:03d}.safetensors", shard)
                for number, shard in enumerate(shards(tensors, self._shard_bytes))
            )
            # Relative to the root, so that a reader may have the directory mounted elsewhere.
            uri = str(place.relative_to(self._root))
            manifest = WeightManifest(
                run_id=run_id, version=version, transport=self.name, uri=uri, shards=written, probe=probe
            )
            (scratch / MANIFEST_FILE).write_text(manifest.model_dump_json())
            _flush(scratch / MANIFEST_FILE)
            _flush(scratch)
            scratch.chmod(0o755)
            return self._put_in_place(scratch, place, manifest)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def read(self, manifest: WeightManifest) -> dict[str, torch.Tensor]:
        verify(self._root, manifest)
        folder = self._root / manifest.uri
        tensors: dict[str, torch.Tensor] = {}
        for shard in manifest.shards:
            try:
                tensors |= load_file(folder / shard.name)
            except SafetensorError as error:
                raise WeightsRefused(f"{named(manifest, shard)} is no safetensors file: {error}") from error
        return tensors

    def remove(self, run_id: RunId, version: Version) -> None:
        place = self._place(run_id, version)
        if place.exists():
            # First out of sight by one step: a reader must not find half of a version.
            doomed = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
            place.rename(doomed / "removed")
        for left_over in place.parent.glob(f".{place.name}.*"):
            shutil.rmtree(left_over, ignore_errors=True)

    def _place(self, run_id: RunId, version: Version) -> Path:
        return version_folder(self._root, run_id, version)

    def _put_in_place(self, scratch: Path, place: Path, manifest: WeightManifest) -> WeightManifest:
        try:
            scratch.rename(place)
        except OSError:
            if not (place / MANIFEST_FILE).exists():
                raise
            present = WeightManifest.model_validate_json((place / MANIFEST_FILE).read_text())
            if present.shards != manifest.shards:
                raise InvariantViolated(
                    f"L9: version {manifest.version} of run {manifest.run_id} is already written with other content: "
                    f"{place}"
                ) from None
            return present
        _flush(place.parent)
        return manifest


def _write_shard(file: Path, tensors: dict[str, torch.Tensor]) -> ShardInfo:
    save_file(tensors, file)
    _flush(file)
    return ShardInfo(name=file.name, bytes=file.stat().st_size, sha256=sha256(file))


def _flush(path: Path) -> None:
    """fsync of a file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
