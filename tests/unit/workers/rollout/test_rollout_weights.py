"""What happens to weights between transport and engine, without an engine."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from psrl.schemas.config.rollout import RolloutDtype, RolloutSection
from psrl.schemas.errors import ModelError, WeightsRefused
from psrl.schemas.ids import Version
from psrl.workers.rollout.model_tensors import model_shapes, require_same
from psrl.workers.rollout.staging import StagedWeights, read_staged

V1 = Version(1)
EXPECTED = {"a": (2, 3), "b": (4,)}


def fitting() -> dict[str, torch.Tensor]:
    return {"a": torch.zeros(2, 3), "b": torch.zeros(4)}


def test_staged_tensors_arrive_bit_for_bit_and_outlive_the_file() -> None:
    tensors = {
        "matrix": torch.randn(5, 7),
        "transposed": torch.randn(5, 7).T,
        "half": torch.randn(3).to(torch.bfloat16),
        "bytes": torch.tensor([1, 255], dtype=torch.uint8),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
    }
    with closing(StagedWeights(tensors)) as staged:
        described = staged.describe()
        read = dict(read_staged(described["path"], described["bytes"], described["layout"]))
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in tensors.items())
    assert not Path(described["path"]).exists()


def write_model(folder: Path, tied: bool) -> None:
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(4)}, folder / "model-1.safetensors")
    save_file({"lm_head.weight": torch.zeros(2, 2)}, folder / "model-2.safetensors")
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_of_a_tied_model_is_not_asked_for(tmp_path: Path, tied: bool) -> None:
    write_model(tmp_path, tied)
    assert model_shapes(tmp_path) == (EXPECTED if tied else {**EXPECTED, "lm_head.weight": (2, 2)})


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.path .*: no \*\.safetensors file"):
        model_shapes(tmp_path)


def test_what_fits_passes_with_and_without_a_tied_head() -> None:
    require_same(EXPECTED, fitting(), V1)
    require_same(EXPECTED, {**fitting(), "lm_head.weight": torch.zeros(9)}, V1)


def test_everything_that_does_not_fit_is_named() -> None:
    with pytest.raises(WeightsRefused) as caught:
        require_same(EXPECTED, {"a": torch.zeros(3, 2), "c": torch.zeros(1)}, V1)
    assert str(caught.value) == (
        "version 1 does not fit the model: missing: b; unknown: c; wrong shape: a [3, 2] instead of [2, 3]"
    )


def test_a_long_list_is_cut() -> None:
    expected = {f"t{i}": (1,) for i in range(9)}
    with pytest.raises(WeightsRefused, match="missing: t0, t1, t2, t3, t4 and 4 more"):
        require_same(expected, {}, V1)


def test_the_probe_tolerance_follows_the_number_format_unless_given() -> None:
    assert RolloutSection().weight_probe_tolerance == 0.5
    assert RolloutSection(dtype=RolloutDtype.FP32).weight_probe_tolerance == 1e-3
    assert RolloutSection(weight_probe_tolerance=0.1).weight_probe_tolerance == 0.1
