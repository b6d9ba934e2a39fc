"""What the stages need of the published versions of their run; `publisher.py` has it from the store and a transport."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from ...schemas.messages.training import PublishResult
from ...schemas.weights import WeightProbe
from .backend import PublishedVersions

if TYPE_CHECKING:
    import torch

Export = Callable[[], "Mapping[str, torch.Tensor]"]
"""`TrainerBackend.export`: called only when the tensors are written."""


class Published(PublishedVersions, Protocol):
    def published(self, version: int) -> PublishResult | None: ...

    def publish(self, version: int, export: Export, probe: WeightProbe) -> PublishResult:
        """Published already, it is left as it is."""
        ...

    def newest(self) -> int | None:
        """The newest published version."""
        ...

    def damage(self, version: int) -> str:
        """What is wrong with the bytes of a published version; empty when they are good."""
        ...

    def repair(self, version: int, export: Export, probe: WeightProbe) -> None:
        """Write the bytes of a damaged version again, from the state rebuilt for it. Raises `WeightsRefused` when they
        are not the ones that were published: a version never changes (L9)."""
        ...
