"""Rows of `weight_versions`. The row is the publication: before it nobody reads the version, after it everybody may.

Synchronous on a connection of the caller; asyncio callers use `AsyncConnection.run_sync`.
"""

from sqlalchemy import Connection, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from ...schemas.errors import InvariantViolated, WeightsRefused
from ...schemas.ids import RunId, Version
from ...schemas.messages.data import Purpose
from ...schemas.status import GroupStatus
from ...schemas.tables import EvaluationResult, Group, WeightVersion
from ...schemas.weights import WeightManifest
from .transport import WeightTransport

INITIAL = Version(0)
LOOK_BACK = 64
"""Versions `retain` looks at beyond those kept. The staleness bound makes it impossible that an older one is in use."""


def publish_version(connection: Connection, manifest: WeightManifest) -> None:
    """Visible when the caller's transaction commits. Idempotent; raises `InvariantViolated` when the version was
    published with other content."""
    row = {
        "run_id": manifest.run_id,
        "version": manifest.version,
        "transport": manifest.transport,
        "uri": manifest.uri,
        "manifest": manifest.model_dump(mode="json"),
        "bytes": manifest.total_bytes,
    }
    inserted = insert(WeightVersion).values(row).on_conflict_do_nothing().returning(WeightVersion.version)
    if connection.scalar(inserted) is not None:
        return
    present = get_manifest(connection, RunId(manifest.run_id), Version(manifest.version))
    if present.shards != manifest.shards:
        raise InvariantViolated(
            f"L9: version {manifest.version} of run {manifest.run_id} is already published with other content"
        )


def find_manifest(connection: Connection, run_id: RunId, version: Version) -> WeightManifest | None:
    """`None` while the version is not published."""
    query = select(WeightVersion.manifest).where(WeightVersion.run_id == run_id, WeightVersion.version == version)
    found = connection.scalar(query)
    return None if found is None else WeightManifest.model_validate(found)


def get_manifest(connection: Connection, run_id: RunId, version: Version) -> WeightManifest:
    """Raises `WeightsRefused` when the version is not published."""
    found = find_manifest(connection, run_id, version)
    if found is None:
        newest = connection.scalar(select(func.max(WeightVersion.version)).where(WeightVersion.run_id == run_id))
        raise WeightsRefused(f"run {run_id}: version {version} is not published (newest: {newest})")
    return found


def retain(connection: Connection, transport: WeightTransport, run_id: RunId, keep: int) -> list[Version]:
    """Remove the bytes of versions nobody can ask for any more; returns which. Kept are the newest `keep`, the initial
    weights, and the tags of live groups. Rows stay: they are the record of what was published. An instance that is
    further behind than `keep` finds its version gone, and pulls the newest instead."""
    published = connection.scalars(
        select(WeightVersion.version)
        .where(WeightVersion.run_id == run_id)
        .order_by(WeightVersion.version.desc())
        .limit(keep + LOOK_BACK)
    ).all()
    # The rows of a validation round stay live; the round is over when its result is there.
    evaluated = select(EvaluationResult.version).where(EvaluationResult.run_id == run_id)
    tags = connection.scalars(
        select(Group.version_tag)
        .distinct()
        .where(
            Group.run_id == run_id,
            Group.status == GroupStatus.LIVE,
            or_(Group.purpose == Purpose.TRAIN.value, Group.version_tag.not_in(evaluated)),
        )
    ).all()
    kept = {INITIAL, *tags, *published[:keep]}
    removed = [Version(version) for version in published if version not in kept]
    for version in removed:
        transport.remove(run_id, version)
    return removed
