"""How the bytes of a version travel from the trainer to the engines. The trainer writes, rollout hosts read.

Promises of every transport (L9): a version is written to a new place and becomes readable as a whole or not at all; it
is never changed afterwards; a reader gets no tensor before every shard's checksum was found right.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from ...schemas.ids import RunId, Version
from ...schemas.weights import WeightManifest, WeightProbe

if TYPE_CHECKING:
    import torch


class WeightTransport(Protocol):
    """Methods block: asyncio callers use a thread."""

    @property
    def name(self) -> str:
        """As in `WeightManifest.transport`."""
        ...

    def write(
        self, run_id: RunId, version: Version, tensors: "Mapping[str, torch.Tensor]", probe: WeightProbe
    ) -> WeightManifest:
        """Make the bytes readable. The same content again is fine; raises `InvariantViolated` when the version is there
        with other content, and `StorageFull`, with nothing left behind, when there is no room."""
        ...

    def read(self, manifest: WeightManifest) -> "dict[str, torch.Tensor]":
        """Raises `WeightsRefused`, naming the shard, when one is missing or damaged. Treat the tensors as read-only."""
        ...

    def remove(self, run_id: RunId, version: Version) -> None:
        """Free the space; also what a crashed write left behind. Does nothing when there is nothing."""
        ...
