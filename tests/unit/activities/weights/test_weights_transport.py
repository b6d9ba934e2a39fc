"""What every weight transport promises: whole or not at all, immutable, verified before a tensor is handed out, and
alive as long as somebody reads. The `file` transport is one of them, and a transport in memory another."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from psrl.activities.weights.file import FileTransport
from psrl.activities.weights.transport import WeightTransport
from psrl.activities.weights.transports import TRANSPORTS, every_transport, open_transport
from psrl.schemas.config import PsMode
from psrl.schemas.errors import InvariantViolated, WeightsRefused
from psrl.schemas.ids import RunId, Version
from psrl.schemas.weights import WeightManifest, WeightProbe
from tests.support.memory_transport import MemoryTransport

RUN, V3 = RunId("run"), Version(3)
PROBE = WeightProbe(token_ids=(1, 2), logprobs=(-0.5,))
MAKE: dict[str, Callable[[Path], WeightTransport]] = {
    "file": lambda folder: FileTransport(folder, shard_bytes=2500),
    "memory": lambda folder: MemoryTransport(),
}


def tensors(fill: float = 1.0) -> dict[str, torch.Tensor]:
    values = {f"layer.{i}.weight": torch.full((16, 16), fill + i) for i in range(6)}
    odd = {"scalar": torch.tensor(fill), "empty": torch.empty(0, 4), "flags": torch.tensor([True, False, fill > 1])}
    return {**values, **odd, "half": torch.full((3,), fill, dtype=torch.bfloat16)}


@pytest.fixture(params=MAKE)
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> WeightTransport:
    return MAKE[request.param](tmp_path)


@pytest.fixture
def manifest(transport: WeightTransport) -> WeightManifest:
    return transport.write(RUN, V3, tensors(), PROBE)


def test_a_version_is_read_back_bit_for_bit(transport: WeightTransport, manifest: WeightManifest) -> None:
    assert len(manifest.shards) > 2
    assert (manifest.transport, manifest.uri) == (transport.name, transport.uri(RUN, V3))
    with transport.lease(manifest) as leased:
        assert leased.manifest == manifest
        assert manifest.total_bytes >= sum(tensor.nbytes for tensor in leased.tensors.values())
        assert leased.tensors.keys() == tensors().keys()
        for name, tensor in tensors().items():
            assert torch.equal(leased.tensors[name], tensor)
            assert leased.tensors[name].dtype == tensor.dtype


def test_what_is_leased_stays_until_the_lease_ends_whatever_is_removed(
    transport: WeightTransport, manifest: WeightManifest
) -> None:
    with transport.lease(manifest) as first, transport.lease(manifest) as second:
        transport.remove(RUN, V3)
        transport.write(RUN, Version(4), tensors(fill=9.0), PROBE)
        with pytest.raises(WeightsRefused, match="missing"):
            transport.lease(manifest)
        second.end()
        second.end()
        assert torch.equal(first.tensors["layer.2.weight"], tensors()["layer.2.weight"])
    with pytest.raises(AssertionError, match="the lease has ended"):
        first.tensors  # noqa: B018


def test_a_removed_version_is_gone_and_removing_it_again_does_nothing(
    transport: WeightTransport, manifest: WeightManifest
) -> None:
    transport.write(RUN, Version(4), tensors(), PROBE)
    assert transport.kept(RUN) == [3, 4]
    for _ in range(2):
        transport.remove(RUN, V3)
    assert (transport.kept(RUN), transport.kept(RunId("other"))) == ([4], [])
    for read in (transport.lease, transport.verify):
        with pytest.raises(WeightsRefused, match=r"run run version 3: shard .* is missing"):
            read(manifest)


def test_a_good_version_is_verified_without_a_word(transport: WeightTransport, manifest: WeightManifest) -> None:
    transport.verify(manifest)


def test_another_publication_under_the_same_place_is_refused(
    transport: WeightTransport, manifest: WeightManifest
) -> None:
    transport.remove(RUN, V3)
    other = transport.write(RUN, V3, tensors(fill=2.0), PROBE)
    assert other.shards != manifest.shards
    for read in (transport.lease, transport.verify):
        with pytest.raises(WeightsRefused, match="version 3"):
            read(manifest)


def test_the_same_content_twice_is_the_same_version(transport: WeightTransport, manifest: WeightManifest) -> None:
    assert transport.write(RUN, V3, tensors(), PROBE) == manifest
    assert transport.kept(RUN) == [3]


def test_other_content_under_the_same_version_is_refused(transport: WeightTransport, manifest: WeightManifest) -> None:
    with pytest.raises(InvariantViolated, match="L9: version 3 of run run is already written"):
        transport.write(RUN, V3, tensors(fill=2.0), PROBE)
    with transport.lease(manifest) as leased:
        assert torch.equal(leased.tensors["half"], tensors()["half"])
    assert transport.kept(RUN) == [3]


def test_readers_and_an_equal_writer_do_not_disturb_each_other(
    transport: WeightTransport, manifest: WeightManifest
) -> None:
    def read() -> torch.Tensor:
        with transport.lease(manifest) as leased:
            return leased.tensors["half"].clone()

    with ThreadPoolExecutor(6) as pool:
        reads = [pool.submit(read) for _ in range(12)]
        writes = [pool.submit(transport.write, RUN, V3, tensors(), PROBE) for _ in range(4)]
        assert all(torch.equal(read.result(), tensors()["half"]) for read in reads)
        assert all(write.result() == manifest for write in writes)


def test_the_configuration_s_modes_are_all_there_and_each_is_found_by_its_name(tmp_path: Path) -> None:
    assert set(TRANSPORTS) == set(PsMode)
    assert [transport.name for transport in every_transport(tmp_path)] == list(PsMode)
    assert open_transport(PsMode.FILE, tmp_path).name == "file"
