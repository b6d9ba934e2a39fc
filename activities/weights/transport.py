"""How the bytes of a version travel from the trainer to the engines. The trainer writes, rollout hosts lease and read.

Promises of every transport (L9): a version is written to a new location and becomes readable as a whole or not at
all; it is never changed afterwards; a reader gets no tensor before every shard's checksum was found right, and what it
reads stays what it is until its lease ends, whatever is removed meanwhile. Chosen by `psrl.ps_mode` (`transports.py`);
`tests/unit/activities/weights/test_weights_transport.py` holds the promises against every one of them.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, Self

from ...schemas.ids import RunId, Version
from ...schemas.weights import WeightManifest, WeightProbe

if TYPE_CHECKING:
    import torch


class Lease:
    """A version that is being read: verified tensors whose buffers live until it ends. Treat them as read-only, and
    copy what must outlive it."""

    def __init__(
        self, manifest: WeightManifest, tensors: "Mapping[str, torch.Tensor]", release: Callable[[], None]
    ) -> None:
        self.manifest = manifest
        self._tensors: Mapping[str, torch.Tensor] | None = tensors
        self._release = release

    @property
    def tensors(self) -> "Mapping[str, torch.Tensor]":
        assert self._tensors is not None, "the lease has ended"
        return self._tensors

    def end(self) -> None:
        """Once is enough; more often does nothing."""
        if self._tensors is not None:
            self._tensors = None
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


class WeightTransport(Protocol):
    """Methods block: asyncio callers use a thread. Making one loads no tensor library."""

    @property
    def name(self) -> str:
        """As in `psrl.ps_mode` and `WeightManifest.transport`."""
        ...

    def write(
        self, run_id: RunId, version: Version, tensors: "Mapping[str, torch.Tensor]", probe: WeightProbe
    ) -> WeightManifest:
        """Make the bytes readable; the row that makes them a publication is the caller's (`versions.py`). The same
        content again is fine; raises `InvariantViolated` when the version is there with other content, and
        `StorageFull`, with nothing left behind, when there is no room."""
        ...

    def lease(self, manifest: WeightManifest) -> Lease:
        """Raises `WeightsRefused`, naming the shard, when one is missing or damaged."""
        ...

    def verify(self, manifest: WeightManifest) -> None:
        """Raises `WeightsRefused` when what is kept is not whole, or another publication."""
        ...

    def remove(self, run_id: RunId, version: Version) -> None:
        """No new lease; the space is free as soon as no lease needs it. Also what a crashed write left behind. Does
        nothing when there is nothing."""
        ...

    def kept(self, run_id: RunId) -> list[Version]:
        """Versions whose bytes are there, published or not, in order."""
        ...

    def uri(self, run_id: RunId, version: Version) -> str:
        """The location of a version, as in its manifest."""
        ...
