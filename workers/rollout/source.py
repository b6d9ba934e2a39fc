"""Where a host gets published versions from: the row in the store, the bytes by the transport it names."""

import asyncio
from typing import TYPE_CHECKING, Protocol

from sqlalchemy.ext.asyncio import AsyncEngine

from ...activities.weights.transport import WeightTransport
from ...activities.weights.versions import get_manifest
from ...schemas.errors import WeightsRefused
from ...schemas.ids import RunId, Version
from ...schemas.weights import WeightManifest

if TYPE_CHECKING:
    import torch


class WeightSource(Protocol):
    async def fetch(self, run_id: RunId, version: Version) -> "tuple[WeightManifest, dict[str, torch.Tensor]]":
        """Verified tensors. Raises `WeightsRefused`."""
        ...


class PublishedWeights:
    def __init__(self, store: AsyncEngine, transports: tuple[WeightTransport, ...]) -> None:
        self._store = store
        self._transports = {transport.name: transport for transport in transports}

    async def fetch(self, run_id: RunId, version: Version) -> "tuple[WeightManifest, dict[str, torch.Tensor]]":
        async with self._store.connect() as connection:
            manifest = await connection.run_sync(get_manifest, run_id, version)
        transport = self._transports.get(manifest.transport)
        if transport is None:
            raise WeightsRefused(
                f"run {run_id} version {version} was published through {manifest.transport!r}; this host knows "
                f"{', '.join(sorted(self._transports))}"
            )
        return manifest, await asyncio.to_thread(transport.read, manifest)
