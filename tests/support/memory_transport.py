"""A transport without a disk that keeps every promise of `WeightTransport`. A version that was removed leaves memory
with its last lease, and its buffers are then overwritten, as a registered buffer that is used again would be."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from psrl.activities.weights.checksum import digest
from psrl.activities.weights.transport import Lease
from psrl.schemas.errors import InvariantViolated, WeightsRefused
from psrl.schemas.ids import RunId, Version
from psrl.schemas.weights import Checksum, ShardInfo, WeightManifest, WeightProbe

Key = tuple[RunId, Version]


@dataclass
class Held:
    manifest: WeightManifest
    buffers: dict[str, torch.Tensor]
    leases: int = 0
    removed: bool = False


@dataclass
class MemoryTransport:
    name: str = "memory"
    held: dict[Key, Held] = field(default_factory=dict)

    def write(
        self, run_id: RunId, version: Version, tensors: Mapping[str, torch.Tensor], probe: WeightProbe
    ) -> WeightManifest:
        buffers = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        manifest = WeightManifest(
            run_id=run_id,
            version=version,
            transport=self.name,
            uri=self.uri(run_id, version),
            shards=tuple(_shard(name, tensor) for name, tensor in sorted(buffers.items())),
            probe=probe,
        )
        present = self.held.setdefault((run_id, version), Held(manifest, buffers)).manifest
        if present.shards != manifest.shards:
            raise InvariantViolated(f"L9: version {version} of run {run_id} is already written with other content")
        return present

    def lease(self, manifest: WeightManifest) -> Lease:
        self.verify(manifest)
        held = self.held[_key(manifest)]
        held.leases += 1

        def release() -> None:
            held.leases -= 1
            _free(held)

        return Lease(manifest, held.buffers, release)

    def verify(self, manifest: WeightManifest) -> None:
        named, held = f"run {manifest.run_id} version {manifest.version}", self.held.get(_key(manifest))
        if held is None:
            raise WeightsRefused(f"{named}: shard {manifest.shards[0].name} is missing")
        for shard in manifest.shards:
            if _shard(shard.name, held.buffers[shard.name]) != shard:
                raise WeightsRefused(f"{named}: shard {shard.name} is damaged")

    def remove(self, run_id: RunId, version: Version) -> None:
        held = self.held.pop((run_id, version), None)
        if held is not None:
            held.removed = True
            _free(held)

    def kept(self, run_id: RunId) -> list[Version]:
        return sorted(version for run, version in self.held if run == run_id)

    def uri(self, run_id: RunId, version: Version) -> str:
        return f"memory:{run_id}/{version}"


def _key(manifest: WeightManifest) -> Key:
    return RunId(manifest.run_id), Version(manifest.version)


def _shard(name: str, tensor: torch.Tensor) -> ShardInfo:
    data = tensor.reshape(-1).view(torch.uint8).numpy().data
    return ShardInfo(name=name, bytes=tensor.nbytes, digest=digest([data], Checksum.BLAKE3))


def _free(held: Held) -> None:
    if held.removed and not held.leases:
        for tensor in held.buffers.values():
            tensor.zero_()
