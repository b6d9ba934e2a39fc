"""The `file` transport: one folder of safetensors per version under a directory that trainer and engines share.

`ROOT/RUN/v000012/` holds the shards and their manifest. It is made under a temporary name, flushed to disk and renamed:
a crash leaves either the whole version or a temporary folder that `remove` sweeps. Reads are memory-mapped, and a map
outlives the removal of its file: a lease needs no lock.

Shards are small, and a few threads work on them, so that writing, checksums and waiting for the disk overlap. The
checksum is of the tensors in memory, not of what the file gives back.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.config import PsMode
from ...schemas.errors import InvariantViolated
from ...schemas.ids import RunId, Version
from ...schemas.weights import Checksum, ShardInfo, WeightManifest, WeightProbe
from . import shard_file
from .checksum import digest
from .room import room
from .shards import SHARD_BYTES, shards
from .stored import MANIFEST_FILE, require_same_publication, verified, version_folder, versions_on_disk
from .transport import Lease

if TYPE_CHECKING:
    import torch

THREADS = 4
"""Most of a shard's time is the kernel's or the disk's; more threads gain nothing on a machine that also trains."""


class FileTransport:
    name = PsMode.FILE.value

    def __init__(self, root: Path, shard_bytes: int = SHARD_BYTES, threads: int = THREADS) -> None:
        self._root = root
        self._shard_bytes = shard_bytes
        self._threads = threads

    def write(
        self, run_id: RunId, version: Version, tensors: "Mapping[str, torch.Tensor]", probe: WeightProbe
    ) -> WeightManifest:
        folder = self._folder(run_id, version)
        with room(folder.parent, sum(tensor.nbytes for tensor in tensors.values())):
            return self._write(folder, run_id, version, tensors, probe)

    def _write(
        self,
        folder: Path,
        run_id: RunId,
        version: Version,
        tensors: "Mapping[str, torch.Tensor]",
        probe: WeightProbe,
    ) -> WeightManifest:
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            with ThreadPoolExecutor(self._threads, "weights") as pool:
                cut = enumerate(shards(tensors, self._shard_bytes))
                written = tuple(pool.map(lambda numbered: _write_shard(scratch, *numbered), cut))
            manifest = WeightManifest(
                run_id=run_id,
                version=version,
                transport=self.name,
                uri=self.uri(run_id, version),
                checksum=Checksum.BLAKE3,
                shards=written,
                probe=probe,
            )
            (scratch / MANIFEST_FILE).write_text(manifest.model_dump_json())
            _flush(scratch / MANIFEST_FILE)
            _flush(scratch)
            scratch.chmod(0o755)
            return self._put_in_place(scratch, folder, manifest)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def lease(self, manifest: WeightManifest) -> Lease:
        folder = self._root / manifest.uri
        with ThreadPoolExecutor(self._threads, "weights") as pool:
            maps = list(pool.map(lambda shard: verified(folder, shard, manifest), manifest.shards))
        tensors = {name: tensor for content in maps for name, tensor in shard_file.decoded(content).items()}
        return Lease(manifest, tensors, release=lambda: None)

    def verify(self, manifest: WeightManifest) -> None:
        folder = self._root / manifest.uri
        with ThreadPoolExecutor(self._threads, "weights") as pool:
            for _ in pool.map(lambda shard: verified(folder, shard, manifest).close(), manifest.shards):
                pass
        require_same_publication(folder, manifest)

    def remove(self, run_id: RunId, version: Version) -> None:
        folder = self._folder(run_id, version)
        if folder.exists():
            # First out of sight by one step: a reader must not find half of a version.
            doomed = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            folder.rename(doomed / "removed")
        for left_over in folder.parent.glob(f".{folder.name}.*"):
            shutil.rmtree(left_over, ignore_errors=True)

    def kept(self, run_id: RunId) -> list[Version]:
        return versions_on_disk(self._root, run_id)

    def uri(self, run_id: RunId, version: Version) -> str:
        """Relative to the root, so that a reader may have the directory mounted elsewhere."""
        return str(version_folder(Path(), run_id, version))

    def _folder(self, run_id: RunId, version: Version) -> Path:
        return version_folder(self._root, run_id, version)

    def _put_in_place(self, scratch: Path, folder: Path, manifest: WeightManifest) -> WeightManifest:
        try:
            scratch.rename(folder)
        except OSError:
            if not (folder / MANIFEST_FILE).exists():
                raise
            present = WeightManifest.model_validate_json((folder / MANIFEST_FILE).read_text())
            if present.shards != manifest.shards:
                raise InvariantViolated(
                    f"L9: version {manifest.version} of run {manifest.run_id} is already written with other content: "
                    f"{folder}"
                ) from None
            return present
        _flush(folder.parent)
        return manifest


def _write_shard(folder: Path, number: int, tensors: "Mapping[str, torch.Tensor]") -> ShardInfo:
    file = folder / f"shard-{number:03d}.safetensors"
    buffers = shard_file.encoded(tensors)
    shard_file.write(file, buffers)
    return ShardInfo(name=file.name, bytes=file.stat().st_size, digest=digest(buffers, Checksum.BLAKE3))


def _flush(path: Path) -> None:
    """fsync of a file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
