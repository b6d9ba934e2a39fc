"""L9: versions are immutable, and kept while something needs them.

The rows are read within the audit's transaction, the files after it: checking gigabytes must not hold a snapshot. While
a run continues, a version may be retired meanwhile; what is missing is therefore looked at again.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, select, text

from ...activities.store.literals import listed
from ...activities.weights.transport import WeightTransport
from ...activities.weights.transports import every_transport
from ...schemas.errors import WeightsRefused
from ...schemas.ids import RunId, Version
from ...schemas.messages.data import Purpose
from ...schemas.status import GroupStatus
from ...schemas.tables import WeightVersion
from ...schemas.weights import WeightManifest
from .check import AuditedRun, Check, Finding, finding

NEEDED = text(
    f"""
    SELECT max(version) FROM weight_versions WHERE run_id = :run
    UNION
    SELECT version_tag FROM groups
    WHERE run_id = :run AND purpose = {listed(Purpose.TRAIN)} AND status = {listed(GroupStatus.LIVE)}
    """
)
"""The newest, which instances pull, and the tags of groups that may still be trained on."""


@dataclass(frozen=True)
class PublishedVersion:
    """A row of `weight_versions`."""

    version: Version
    transport: str
    uri: str
    bytes: int
    manifest: WeightManifest


def published_versions(run: AuditedRun) -> list[PublishedVersion]:
    columns = (WeightVersion.version, WeightVersion.transport, WeightVersion.uri, WeightVersion.bytes)
    query = select(*columns, WeightVersion.manifest).where(WeightVersion.run_id == run.run_id)
    return [
        PublishedVersion(Version(version), transport, uri, size, WeightManifest.model_validate(manifest))
        for version, transport, uri, size, manifest in run.connection.execute(query.order_by(WeightVersion.version))
    ]


def immutable(
    connection: Connection, run_id: RunId, published: list[PublishedVersion], ended: bool, weights: Path | None
) -> Check:
    """After the audit's transaction. `weights`: the stack's folder of versions; null, or not on this machine, leaves
    files unchecked. Nothing needs a version of a run that has `ended`, but what is left must still be whole."""
    counts = {"versions published": len(published)}
    transports = every_transport(weights or Path())
    findings = [*_holes(published), *_contradictions(run_id, published, transports)]
    if weights is None or not weights.is_dir():
        counts["not checked on disk"] = len(published)
    else:
        for transport in transports:
            rows = [row for row in published if row.transport == transport.name]
            there = set(transport.kept(run_id))
            kept = [row for row in rows if row.version in there]
            counts["kept on disk and checked"] = counts.get("kept on disk and checked", 0) + len(kept)
            findings += _damaged(transport, run_id, kept)
            findings += _strays(sorted(there), published, counts)
            if not ended:
                findings += _missing(connection, run_id, {row.version for row in rows} - there)
    return Check("L9", "versions are immutable", counts, tuple(findings))


def _holes(published: list[PublishedVersion]) -> tuple[Finding, ...]:
    there = {row.version for row in published}
    missing = [f"version {version}" for version in range(max(there, default=-1) + 1) if version not in there]
    return finding("published versions have holes", missing)


def _contradictions(
    run_id: RunId, published: list[PublishedVersion], transports: tuple[WeightTransport, ...]
) -> tuple[Finding, ...]:
    """A row says what its manifest says, and no other version has its path."""
    paths = {transport.name: transport.uri for transport in transports}
    wrong = [
        f"version {row.version}"
        for row in published
        if (row.manifest.run_id, row.manifest.version, row.manifest.transport, row.manifest.uri)
        != (run_id, row.version, row.transport, row.uri)
        or row.manifest.total_bytes != row.bytes
        or (row.transport in paths and row.uri != paths[row.transport](run_id, row.version))
    ]
    held = Counter((row.transport, row.uri) for row in published)
    shared = [f"version {row.version} in {row.uri}" for row in published if held[row.transport, row.uri] > 1]
    return (
        *finding("a version's row does not fit its manifest or its path", wrong),
        *finding("versions share one path", shared),
    )


def _damaged(transport: WeightTransport, run_id: RunId, kept: list[PublishedVersion]) -> tuple[Finding, ...]:
    faults = [f"version {row.version}: {fault}" for row in kept if (fault := _fault(transport, run_id, row))]
    return finding("a kept version is not what was published", faults)


def _fault(transport: WeightTransport, run_id: RunId, row: PublishedVersion) -> str:
    try:
        transport.verify(row.manifest)
    except WeightsRefused as error:
        # Retired while it was read: a version leaves its path by one step.
        told = str(error).splitlines()[0].removeprefix(f"run {row.manifest.run_id} version {row.version}: ")
        return told if row.version in transport.kept(run_id) else ""
    return ""


def _strays(there: list[Version], published: list[PublishedVersion], counts: dict[str, int]) -> tuple[Finding, ...]:
    """Bytes beyond the newest row are a write in progress, or what a crash left: nobody reads them."""
    rows = {row.version for row in published}
    newest = max(rows, default=-1)
    strays = [version for version in there if version not in rows]
    if ahead := [version for version in strays if version > newest]:
        counts["written, not published"] = len(ahead)
    old = [f"version {version}" for version in strays if version < newest]
    return finding("bytes without a row are older than the newest version", old)


def _missing(connection: Connection, run_id: RunId, gone: set[Version]) -> tuple[Finding, ...]:
    if not gone:
        return ()
    needed = set(connection.scalars(NEEDED, {"run": run_id}))
    return finding("a version is needed, but not kept", [f"version {version}" for version in sorted(gone & needed)])
