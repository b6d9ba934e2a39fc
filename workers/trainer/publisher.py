"""Publishes versions of one run: bytes through the transport first, then one row that makes them visible (L9)."""

import time
from pathlib import Path

from sqlalchemy import Connection, Engine, func, select

from ...activities.weights.transport import Lease
from ...activities.weights.transports import open_transport
from ...activities.weights.versions import find_manifest, get_manifest, publish_version, retain
from ...schemas.config import RunConfig
from ...schemas.errors import WeightsRefused
from ...schemas.ids import RunId, Version
from ...schemas.messages.training import PublishResult
from ...schemas.tables import WeightVersion
from ...schemas.weights import WeightManifest, WeightProbe
from .published import Export

SPARE_VERSIONS = 3
"""Kept beyond eta: the newest, one that a slow instance may still be pulling, and one in reserve."""


class Publisher:
    """`Published`, by the store and the run's transport."""

    def __init__(self, store: Engine, root: Path, run_id: RunId, config: RunConfig) -> None:
        self._store = store
        self._transport = open_transport(config.psrl.ps_mode, root)
        self._run_id = run_id
        self._keep = config.psrl.staleness + SPARE_VERSIONS

    def published(self, version: int) -> PublishResult | None:
        manifest = self._manifest(version)
        return None if manifest is None else PublishResult(version=version, bytes=manifest.total_bytes, seconds=0.0)

    def probe(self, version: int) -> WeightProbe | None:
        manifest = self._manifest(version)
        return None if manifest is None else manifest.probe

    def lease(self, version: int) -> Lease:
        with self._store.connect() as connection:
            manifest = get_manifest(connection, self._run_id, Version(version))
        return self._transport.lease(manifest)

    def publish(self, version: int, export: Export, probe: WeightProbe) -> PublishResult:
        began = time.perf_counter()
        with self._store.begin() as connection:
            _one_trainer_at_a_time(connection, self._run_id)
            manifest = find_manifest(connection, self._run_id, Version(version))
            if manifest is None:
                # Bytes without a row are what a crash left, and nobody may read them. They are the same as ours only
                # on the same hardware.
                self._transport.remove(self._run_id, Version(version))
                manifest = self._transport.write(self._run_id, Version(version), export(), probe)
                publish_version(connection, manifest)
        with self._store.begin() as connection:
            retain(connection, self._transport, self._run_id, self._keep)
        return PublishResult(version=version, bytes=manifest.total_bytes, seconds=time.perf_counter() - began)

    def newest(self) -> int | None:
        query = select(func.max(WeightVersion.version)).where(WeightVersion.run_id == self._run_id)
        with self._store.connect() as connection:
            return connection.scalar(query)

    def damage(self, version: int) -> str:
        manifest = self._manifest(version)
        try:
            if manifest is not None:
                self._transport.verify(manifest)
        except WeightsRefused as error:
            return str(error)
        return ""

    def repair(self, version: int, export: Export, probe: WeightProbe) -> None:
        with self._store.begin() as connection:
            _one_trainer_at_a_time(connection, self._run_id)
            published = get_manifest(connection, self._run_id, Version(version))
            self._transport.remove(self._run_id, Version(version))
            written = self._transport.write(self._run_id, Version(version), export(), probe)
            if written.shards != published.shards:
                self._transport.remove(self._run_id, Version(version))
                raise WeightsRefused(
                    f"run {self._run_id}: version {version} is damaged on the disk, and what this machine rebuilds "
                    "from checkpoint and batches is not bit for bit what was published; put the files back"
                )

    def _manifest(self, version: int) -> WeightManifest | None:
        with self._store.connect() as connection:
            return find_manifest(connection, self._run_id, Version(version))


def _one_trainer_at_a_time(connection: Connection, run_id: RunId) -> None:
    """One that was taken for dead but still runs must not touch what the next one published."""
    connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"publish {run_id}", 0))))
