"""The file transport: whole or not at all, immutable, verified before a tensor is handed out."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from psrl.activities.weights.file import FileTransport
from psrl.activities.weights.shards import shards
from psrl.schemas.errors import InvariantViolated, StorageFull, WeightsRefused
from psrl.schemas.ids import RunId, Version
from psrl.schemas.weights import WeightManifest, WeightProbe

RUN, V3 = RunId("run"), Version(3)
PROBE = WeightProbe(token_ids=(1, 2), logprobs=(-0.5,))


def tensors(fill: float = 1.0) -> dict[str, torch.Tensor]:
    values = {f"layer.{i}.weight": torch.full((16, 16), fill + i) for i in range(6)}
    return {**values, "half": torch.full((3,), fill, dtype=torch.bfloat16)}


@pytest.fixture
def transport(tmp_path: Path) -> FileTransport:
    return FileTransport(tmp_path, shard_bytes=2500)


@pytest.fixture
def manifest(transport: FileTransport) -> WeightManifest:
    return transport.write(RUN, V3, tensors(), PROBE)


def shard_file(root: Path, manifest: WeightManifest, number: int = 1) -> Path:
    return root / manifest.uri / manifest.shards[number].name


def test_a_version_is_read_back_bit_for_bit(transport: FileTransport, manifest: WeightManifest) -> None:
    read = transport.read(manifest)
    assert len(manifest.shards) > 2
    assert manifest.total_bytes >= sum(tensor.nbytes for tensor in read.values())
    assert read.keys() == tensors().keys()
    assert all(
        torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in tensors().items()
    )


def test_a_reader_may_have_the_folder_mounted_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    manifest = FileTransport(tmp_path / "here").write(RUN, V3, tensors(), PROBE)
    (tmp_path / "here").rename(tmp_path / "there")
    assert FileTransport(tmp_path / "there").read(manifest).keys() == tensors().keys()


@pytest.mark.parametrize("offset", [4, -4])
def test_one_flipped_bit_is_refused_naming_the_shard(
    transport: FileTransport, manifest: WeightManifest, tmp_path: Path, offset: int
) -> None:
    file = shard_file(tmp_path, manifest)
    content = bytearray(file.read_bytes())
    content[offset] ^= 1
    file.write_bytes(content)
    with pytest.raises(WeightsRefused, match=r"version 3: shard shard-001\.safetensors is damaged"):
        transport.read(manifest)


def test_a_truncated_shard_is_refused(transport: FileTransport, manifest: WeightManifest, tmp_path: Path) -> None:
    file = shard_file(tmp_path, manifest)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(WeightsRefused, match=r"shard-001\.safetensors has \d+ bytes, published were \d+"):
        transport.read(manifest)


def test_a_missing_shard_is_refused(transport: FileTransport, manifest: WeightManifest, tmp_path: Path) -> None:
    shard_file(tmp_path, manifest, 0).unlink()
    with pytest.raises(WeightsRefused, match=r"shard-000\.safetensors is missing"):
        transport.read(manifest)


def test_the_last_shard_is_verified_before_the_first_is_handed_out(
    transport: FileTransport, manifest: WeightManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_file(tmp_path, manifest, -1).unlink()
    monkeypatch.setattr("psrl.activities.weights.file.load_file", lambda path: pytest.fail(f"{path} was opened"))
    with pytest.raises(WeightsRefused, match="missing"):
        transport.read(manifest)


def test_the_same_content_twice_is_the_same_version(
    transport: FileTransport, manifest: WeightManifest, tmp_path: Path
) -> None:
    assert transport.write(RUN, V3, tensors(), PROBE) == manifest
    assert [path.name for path in (tmp_path / RUN).iterdir()] == ["v000003"]


def test_other_content_under_the_same_version_is_refused(
    transport: FileTransport, manifest: WeightManifest, tmp_path: Path
) -> None:
    with pytest.raises(InvariantViolated, match="L9: version 3 of run run is already written"):
        transport.write(RUN, V3, tensors(fill=2.0), PROBE)
    assert torch.equal(transport.read(manifest)["half"], tensors()["half"])
    assert [path.name for path in (tmp_path / RUN).iterdir()] == ["v000003"]


def test_a_write_that_fails_leaves_nothing(
    transport: FileTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("psrl.activities.weights.file._flush", full)
    with pytest.raises(StorageFull, match="No space left"):
        transport.write(RUN, V3, tensors(), PROBE)
    assert list((tmp_path / RUN).iterdir()) == []


def test_readers_and_an_equal_writer_do_not_disturb_each_other(
    transport: FileTransport, manifest: WeightManifest
) -> None:
    with ThreadPoolExecutor(6) as pool:
        reads = [pool.submit(transport.read, manifest) for _ in range(12)]
        writes = [pool.submit(transport.write, RUN, V3, tensors(), PROBE) for _ in range(4)]
        assert all(torch.equal(read.result()["half"], tensors()["half"]) for read in reads)
        assert all(write.result() == manifest for write in writes)


def test_removing_frees_the_space_and_sweeps_what_a_crash_left(
    transport: FileTransport, manifest: WeightManifest, tmp_path: Path
) -> None:
    (tmp_path / RUN / ".v000003.crashed").mkdir()
    transport.write(RUN, Version(4), tensors(), PROBE)
    transport.remove(RUN, V3)
    transport.remove(RUN, V3)
    assert [path.name for path in (tmp_path / RUN).iterdir()] == ["v000004"]
    with pytest.raises(WeightsRefused, match="missing"):
        transport.read(manifest)


def test_shards_are_bounded_and_hold_every_tensor_once() -> None:
    parts = list(shards(tensors(), limit=2500))
    assert all(sum(tensor.nbytes for tensor in part.values()) <= 2500 for part in parts)
    assert sorted(name for part in parts for name in part) == sorted(tensors())


def test_a_tensor_larger_than_the_limit_gets_a_shard_of_its_own() -> None:
    assert [list(part) for part in shards({"a": torch.zeros(1), "b": torch.zeros(99), "c": torch.zeros(1)}, 8)] == [
        ["a"],
        ["b"],
        ["c"],
    ]
