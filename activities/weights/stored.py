"""What the `file` transport keeps on disk: where a version lies, and whether its bytes are those that were published.

Loads no tensor library: the audit checks versions on machines that have none.
"""

import hashlib
import re
from pathlib import Path

from ...schemas.errors import WeightsRefused
from ...schemas.ids import RunId, Version
from ...schemas.weights import ShardInfo, WeightManifest

MANIFEST_FILE = "manifest.json"


def version_folder(root: Path, run_id: RunId, version: Version) -> Path:
    return root / run_id / f"v{version:06d}"


def versions_on_disk(root: Path, run_id: RunId) -> list[Version]:
    """In order. Scratch folders of a write in progress are no versions."""
    names = (re.fullmatch(r"v(\d{6,})", folder.name) for folder in (root / run_id).glob("v*"))
    return sorted(Version(int(name[1])) for name in names if name)


def verify(root: Path, manifest: WeightManifest) -> None:
    """Raises `WeightsRefused`, naming the shard, when one is missing or not what was published."""
    for shard in manifest.shards:
        _verify(root / manifest.uri / shard.name, shard, manifest)


def named(manifest: WeightManifest, shard: ShardInfo) -> str:
    return f"run {manifest.run_id} version {manifest.version}: shard {shard.name}"


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _verify(file: Path, shard: ShardInfo, manifest: WeightManifest) -> None:
    try:
        size = file.stat().st_size
        if size != shard.bytes:
            raise WeightsRefused(f"{named(manifest, shard)} has {size} bytes, published were {shard.bytes}: {file}")
        found = sha256(file)
    except FileNotFoundError:
        raise WeightsRefused(f"{named(manifest, shard)} is missing: {file}") from None
    if found != shard.sha256:
        raise WeightsRefused(f"{named(manifest, shard)} is damaged: sha256 {found}, published {shard.sha256}: {file}")
