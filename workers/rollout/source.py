"""Where a host gets published versions from: the row in the store, the bytes by the transport it names."""

import asyncio
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncEngine

from ...activities.weights.transport import Lease, WeightTransport
from ...activities.weights.versions import get_manifest
from ...schemas.errors import WeightsRefused
from ...schemas.ids import RunId, Version


class WeightSource(Protocol):
    async def lease(self, run_id: RunId, version: Version) -> Lease:
        """The caller ends it. Raises `WeightsRefused`."""
        ...


class PublishedWeights:
    def __init__(self, store: AsyncEngine, transports: tuple[WeightTransport, ...]) -> None:
        self._store = store
        self._transports = {transport.name: transport for transport in transports}

    async def lease(self, run_id: RunId, version: Version) -> Lease:
        async with self._store.connect() as connection:
            manifest = await connection.run_sync(get_manifest, run_id, version)
        transport = self._transports.get(manifest.transport)
        if transport is None:
            raise WeightsRefused(
                f"run {run_id} version {version} was published through {manifest.transport!r}; this host knows "
                f"{', '.join(sorted(self._transports))}"
            )
        return await asyncio.to_thread(transport.lease, manifest)
