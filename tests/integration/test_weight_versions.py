"""Published versions: the row is the publication."""

from pathlib import Path

import pytest
import torch
from sqlalchemy import Connection, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.weights.file import FileTransport
from psrl.activities.weights.versions import find_manifest, get_manifest, publish_version, retain
from psrl.schemas.errors import InvariantViolated, WeightsRefused
from psrl.schemas.ids import Version
from psrl.schemas.tables import EvaluationResult, Group
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
    with await PublishedWeights(store, (transport,)).lease(RUN, Version(2)) as leased:
        assert (leased.manifest.probe, leased.tensors["w"].tolist()) == (PROBE, [2.0, 2.0])
    with pytest.raises(WeightsRefused, match="through 'file'; this host knows "):
        await PublishedWeights(store, ()).lease(RUN, Version(2))


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


async def test_after_100_versions_only_those_that_are_referenced_remain(store: AsyncEngine, tmp_path: Path) -> None:
    """Bound 2: the newest 5, version 0, the tag of a live group, and that of a validation round in progress. A round
    that is over holds nothing, though its rows stay live."""
    await add_group(store)
    transport = FileTransport(tmp_path)
    async with store.begin() as connection:
        await connection.execute(update(Group).values(version_tag=97))
    for version in range(100):
        await publish(store, write(transport, version))
        if version % 10 == 0:
            async with store.begin() as connection:
                await connection.run_sync(validation_round, version, over=version < 90)
        async with store.begin() as connection:
            await connection.run_sync(retain, transport, RUN, 5)
    left = sorted(int(path.name[1:]) for path in (tmp_path / RUN).iterdir())
    assert left == [0, 90, 95, 96, 97, 98, 99]
    async with store.begin() as connection:
        await connection.execute(update(Group).where(Group.purpose == "train").values(status="trained"))
        await connection.run_sync(validation_round, 90, over=True)
        await connection.run_sync(retain, transport, RUN, 2)
    assert sorted(int(path.name[1:]) for path in (tmp_path / RUN).iterdir()) == [0, 98, 99]


def validation_round(connection: Connection, version: int, over: bool) -> None:
    if over:
        row = {"run_id": RUN, "version": version, "accuracy": 0.5, "scored": 1, "failed": 0}
        connection.execute(insert(EvaluationResult).values(row))
    key = {"run_id": RUN, "group_id": f"v{version:06d}-0000"}
    group = {
        **key,
        "purpose": "validation",
        "epoch": 0,
        "position": 0,
        "row": 0,
        "version_tag": version,
        "prompt_ids": b"",
        "prompt_text": "",
        "data_source": "",
        "extra": {},
    }
    connection.execute(insert(Group).values(group).on_conflict_do_nothing())


async def test_three_readers_of_one_version_one_of_them_late_all_get_it_or_are_told(
    store: AsyncEngine, tmp_path: Path
) -> None:
    """A version stays for as many updates as an instance may lag; one that comes later still is refused by name, and
    finds the newest."""
    await add_group(store)
    transport = FileTransport(tmp_path)
    source = PublishedWeights(store, (transport,))
    keep = 5
    for version in range(3, 3 + keep):
        await publish(store, write(transport, version))
        async with store.begin() as connection:
            await connection.run_sync(retain, transport, RUN, keep)
        assert (await source.lease(RUN, Version(3))).tensors["w"].tolist() == [3.0, 3.0]
    await publish(store, write(transport, 3 + keep))
    async with store.begin() as connection:
        assert await connection.run_sync(retain, transport, RUN, keep) == [3]
    with pytest.raises(WeightsRefused, match=r"version 3: shard shard-000.safetensors is missing"):
        await source.lease(RUN, Version(3))
    assert (await source.lease(RUN, Version(3 + keep))).tensors["w"].tolist() == [8.0, 8.0]
