"""What the `file` transport keeps on disk: where a version lies, and whether its bytes are those that were published.

Loads no tensor library: the audit checks versions on machines that have none.
"""

import mmap
import re
from pathlib import Path

from pydantic import ValidationError

from ...schemas.errors import WeightsRefused
from ...schemas.ids import RunId, Version
from ...schemas.weights import ShardInfo, WeightManifest
from .checksum import digest
from .shard_file import mapped

MANIFEST_FILE = "manifest.json"


def version_folder(root: Path, run_id: RunId, version: Version) -> Path:
    return root / run_id / f"v{version:06d}"


def versions_on_disk(root: Path, run_id: RunId) -> list[Version]:
    """In order. Scratch folders of a write in progress are no versions."""
    names = (re.fullmatch(r"v(\d{6,})", folder.name) for folder in (root / run_id).glob("v*"))
    return sorted(Version(int(name[1])) for name in names if name)


def require_same_publication(folder: Path, manifest: WeightManifest) -> None:
    """Raises `WeightsRefused` when the manifest that lies with the bytes is missing or another one's."""
    try:
        beside = WeightManifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise WeightsRefused(f"{_named(manifest)}: {folder / MANIFEST_FILE} is missing or unreadable") from error
    if beside.shards != manifest.shards:
        raise WeightsRefused(f"{_named(manifest)}: its files are another publication's than its row: {folder}")


def verified(folder: Path, shard: ShardInfo, manifest: WeightManifest) -> mmap.mmap:
    """The shard's bytes. Raises `WeightsRefused`, naming it, when it is missing or not what was published."""
    file, named = folder / shard.name, f"{_named(manifest)}: shard {shard.name}"
    try:
        size = file.stat().st_size
        if size != shard.bytes:
            raise WeightsRefused(f"{named} has {size} bytes, published were {shard.bytes}: {file}")
        content = mapped(file)
    except FileNotFoundError:
        raise WeightsRefused(f"{named} is missing: {file}") from None
    found = digest([content], manifest.checksum)
    if found != shard.digest:
        raise WeightsRefused(f"{named} is damaged: {manifest.checksum} {found}, published {shard.digest}: {file}")
    return content


def _named(manifest: WeightManifest) -> str:
    return f"run {manifest.run_id} version {manifest.version}"
