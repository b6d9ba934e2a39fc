"""What a published version is, independent of the transport that carries it."""

from enum import StrEnum

from .messages.base import Message


class Checksum(StrEnum):
    """How shards are told from damaged ones; `activities.weights.checksum` computes it."""

    BLAKE3 = "blake3"
    """As strong as SHA-256, several times as fast (docs/decisions/weights.md)."""


class ShardInfo(Message):
    """One file (or region) of a version."""

    name: str
    bytes: int
    digest: str
    """In hexadecimal, by the manifest's checksum."""


class WeightProbe(Message):
    """A fixed token sequence with the trainer's log-probs under this version: an engine that loaded the version must
    reproduce them. `logprobs[i]` belongs to `token_ids[i + 1]` given the ids before it, at temperature 1."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class WeightManifest(Message):
    """Everything a reader needs to fetch and check one version."""

    run_id: str
    version: int
    transport: str
    uri: str
    checksum: Checksum = Checksum.BLAKE3
    shards: tuple[ShardInfo, ...]
    probe: WeightProbe

    @property
    def total_bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)
