"""What a published version is, independent of the transport that carries it."""

from .messages.base import Message


class ShardInfo(Message):
    """One file (or region) of a version."""

    name: str
    bytes: int
    sha256: str


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
    shards: tuple[ShardInfo, ...]
    probe: WeightProbe

    @property
    def total_bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)
