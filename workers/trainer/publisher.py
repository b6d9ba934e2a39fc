"""Publishes versions of one run: files through the transport first, then one row that makes them visible (L9)."""

import logging
import time
from pathlib import Path

from sqlalchemy import Engine, select
from sqlalchemy.dialects.postgresql import insert

from ...activities.weights.file import FileTransport
from ...schemas.config import RunConfig
from ...schemas.ids import RunId, Version
from ...schemas.messages.training import PublishResult
from ...schemas.tables import WeightVersion
from ...schemas.weights import WeightManifest, WeightProbe
from .state import TrainerState

log = logging.getLogger(__name__)

SPARE_VERSIONS = 3
"""Kept beyond eta: the newest, one that a slow instance may be pulling, and one in reserve."""


class Publisher:
    def __init__(self, store: Engine, root: Path, run_id: RunId, config: RunConfig) -> None:
        self._store = store
        self._transport = FileTransport(root)
        self._run_id = run_id
        self._kept = config.psrl.staleness + SPARE_VERSIONS

    def published(self, version: int) -> PublishResult | None:
        manifest = self._manifest(version)
        return None if manifest is None else PublishResult(version=version, bytes=manifest.total_bytes, seconds=0.0)

    def probe(self, version: int) -> WeightProbe | None:
        """Of a published version."""
        manifest = self._manifest(version)
        return None if manifest is None else manifest.probe

    def publish(self, state: TrainerState, probe: WeightProbe) -> PublishResult:
        """The version of `state`, which no row shows yet; files of a crashed attempt are replaced."""
        began = time.perf_counter()
        version = Version(state.version)
        manifest = self._transport.write(self._run_id, version, state.published_tensors(), probe)
        row = {
            "run_id": self._run_id,
            "version": version,
            "transport": manifest.transport,
            "uri": manifest.uri,
            "manifest": manifest.model_dump(mode="json"),
            "bytes": manifest.total_bytes,
        }
        with self._store.begin() as connection:
            connection.execute(insert(WeightVersion).values(row).on_conflict_do_nothing())
        self._retire(state.version - self._kept)
        return PublishResult(version=version, bytes=manifest.total_bytes, seconds=time.perf_counter() - began)

    def _manifest(self, version: int) -> WeightManifest | None:
        query = select(WeightVersion.manifest).where(
            WeightVersion.run_id == self._run_id, WeightVersion.version == version
        )
        with self._store.connect() as connection:
            found = connection.execute(query).scalar_one_or_none()
        return None if found is None else WeightManifest.model_validate(found)

    def _retire(self, newest: int) -> None:
        """Remove the files of versions up to `newest`, but version 0, which evaluations and comparisons go back to."""
