"""What the `file` transport does on disk."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from psrl.activities.weights import shard_file
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


def shard_path(root: Path, manifest: WeightManifest, number: int = 1) -> Path:
    return root / manifest.uri / manifest.shards[number].name


def test_a_reader_may_have_the_folder_mounted_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    manifest = FileTransport(tmp_path / "here").write(RUN, V3, tensors(), PROBE)
    (tmp_path / "here").rename(tmp_path / "there")
    with FileTransport(tmp_path / "there").lease(manifest) as leased:
        assert leased.tensors.keys() == tensors().keys()


def test_a_shard_is_a_safetensors_file_that_any_library_reads(
    transport: FileTransport, manifest: WeightManifest, tmp_path: Path
) -> None:
    loaded = {
        name: tensor
        for number in range(len(manifest.shards))
        for name, tensor in load_file(shard_path(tmp_path, manifest, number)).items()
    }
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors().items())


def test_every_tensor_lies_where_it_can_be_used_without_a_copy() -> None:
    header, *buffers = shard_file.encoded(
        {"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(5), "c": torch.ones(2)}
    )
    assert len(header) % shard_file.ALIGNMENT == 0
    assert [len(buffer) for buffer in buffers] == [20, 8, 3]


def test_a_number_format_that_the_file_has_no_name_for_is_refused() -> None:
    with pytest.raises(InvariantViolated, match=r"'z' is torch.complex64; a version may hold bfloat16, bool"):
        shard_file.encoded({"z": torch.zeros(2, dtype=torch.complex64)})


@pytest.mark.parametrize("offset", [4, -4])
def test_one_flipped_bit_is_refused_naming_the_shard(
    transport: FileTransport, manifest: WeightManifest, tmp_path: Path, offset: int
) -> None:
    file = shard_path(tmp_path, manifest)
    content = bytearray(file.read_bytes())
    content[offset] ^= 1
    file.write_bytes(content)
    for read in (transport.lease, transport.verify):
        with pytest.raises(WeightsRefused, match=r"version 3: shard shard-001\.safetensors is damaged"):
            read(manifest)


def test_a_truncated_shard_is_refused(transport: FileTransport, manifest: WeightManifest, tmp_path: Path) -> None:
    file = shard_path(tmp_path, manifest)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(WeightsRefused, match=r"shard-001\.safetensors has \d+ bytes, published were \d+"):
        transport.lease(manifest)


def test_a_missing_shard_is_refused(transport: FileTransport, manifest: WeightManifest, tmp_path: Path) -> None:
    shard_path(tmp_path, manifest, 0).unlink()
    with pytest.raises(WeightsRefused, match=r"shard-000\.safetensors is missing"):
        transport.lease(manifest)


def test_the_last_shard_is_verified_before_the_first_is_handed_out(
    transport: FileTransport, manifest: WeightManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_path(tmp_path, manifest, -1).unlink()
    monkeypatch.setattr(shard_file, "decoded", lambda content: pytest.fail("a tensor was made"))
    with pytest.raises(WeightsRefused, match="missing"):
        transport.lease(manifest)


def test_a_lost_manifest_beside_the_bytes_is_noticed(
    transport: FileTransport, manifest: WeightManifest, tmp_path: Path
) -> None:
    (tmp_path / manifest.uri / "manifest.json").unlink()
    with pytest.raises(WeightsRefused, match=r"manifest\.json is missing or unreadable"):
        transport.verify(manifest)


def test_a_write_that_fails_leaves_nothing(
    transport: FileTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("psrl.activities.weights.file._flush", full)
    with pytest.raises(StorageFull, match="No space left"):
        transport.write(RUN, V3, tensors(), PROBE)
    assert list((tmp_path / RUN).iterdir()) == []


def test_a_shard_that_fails_beside_others_leaves_nothing(
    transport: FileTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = shard_file.write

    def full(path: Path, buffers: object) -> None:
        if path.name == "shard-001.safetensors":
            raise OSError(28, "No space left on device")
        plain(path, buffers)  # type: ignore[arg-type]

    monkeypatch.setattr(shard_file, "write", full)
    with pytest.raises(StorageFull, match="No space left"):
        transport.write(RUN, V3, tensors(), PROBE)
    assert list((tmp_path / RUN).iterdir()) == []


def test_a_write_or_removal_leaves_nothing_but_the_version(
    transport: FileTransport, manifest: WeightManifest, tmp_path: Path
) -> None:
    (tmp_path / RUN / ".v000003.crashed").mkdir()
    transport.write(RUN, Version(4), tensors(), PROBE)
    with pytest.raises(InvariantViolated):
        transport.write(RUN, Version(4), tensors(fill=2.0), PROBE)
    transport.remove(RUN, V3)
    assert [path.name for path in (tmp_path / RUN).iterdir()] == ["v000004"]


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
