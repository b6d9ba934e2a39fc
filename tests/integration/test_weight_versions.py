"""Published versions: the row is the publication."""

from pathlib import Path

import pytest
import torch
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.weights.file import FileTransport
from psrl.activities.weights.versions import find_manifest, get_manifest, publish_version, retain
from psrl.schemas.errors import InvariantViolated, WeightsRefused
from psrl.schemas.ids import Version
from psrl.schemas.tables import Group
from psrl.schemas.weights import WeightManifest, WeightProbe
from psrl.workers.rollout.source import PublishedWeights
from tests.support.rollout import RUN, add_group

pytestmark = pytest.mark.integration
PROBE = WeightProbe(token_ids=(1, 2), logprobs=(-0.5,))


def write(transport: FileTransport, version: int, fill: float = 0.0) -> WeightManifest:
    return transport.write(RUN, Version(version), {"w": torch.full((2,), fill + version)}, PROBE)


async def publish(store: AsyncEngine, manifest: WeightManifest) -> None:
    async with store.begin() as connection:
        await connection.run_sync(publish_version, manifest)


async def test_a_version_is_visible_from_its_row_on(store: AsyncEngine, tmp_path: Path) -> None:
    await add_group(store)
    manifest = write(FileTransport(tmp_path), 1)
    async with store.connect() as connection:
        assert await connection.run_sync(find_manifest, RUN, Version(1)) is None
        with pytest.raises(WeightsRefused, match=r"version 1 is not published \(newest: None\)"):
            await connection.run_sync(get_manifest, RUN, Version(1))
    await publish(store, manifest)
    await publish(store, manifest)
    async with store.connect() as connection:
        assert await connection.run_sync(get_manifest, RUN, Version(1)) == manifest


async def test_a_published_version_never_changes(store: AsyncEngine, tmp_path: Path) -> None:
    await add_group(store)
    await publish(store, write(FileTransport(tmp_path / "a"), 1))
    with pytest.raises(InvariantViolated, match="L9: version 1 of run run-1 is already published"):
        await publish(store, write(FileTransport(tmp_path / "b"), 1, fill=5.0))


async def test_a_host_reads_what_was_published(store: AsyncEngine, tmp_path: Path) -> None:
    await add_group(store)
    transport = FileTransport(tmp_path)
    await publish(store, write(transport, 2))
    manifest, tensors = await PublishedWeights(store, (transport,)).fetch(RUN, Version(2))
    assert (manifest.probe, tensors["w"].tolist()) == (PROBE, [2.0, 2.0])
    with pytest.raises(WeightsRefused, match="through 'file'; this host knows "):
        await PublishedWeights(store, ()).fetch(RUN, Version(2))


async def test_old_versions_are_removed_but_not_those_in_use(store: AsyncEngine, tmp_path: Path) -> None:
    await add_group(store)
    async with store.begin() as connection:
        await connection.execute(update(Group).values(version_tag=2))
    transport = FileTransport(tmp_path)
    for version in range(7):
        await publish(store, write(transport, version))
    async with store.begin() as connection:
        removed = await connection.run_sync(retain, transport, RUN, 2)
    assert sorted(removed) == [1, 3, 4]
    left = sorted(path.name for path in (tmp_path / RUN).iterdir())
    assert left == ["v000000", "v000002", "v000005", "v000006"]
    async with store.connect() as connection:
        assert await connection.run_sync(find_manifest, RUN, Version(3)) is not None
