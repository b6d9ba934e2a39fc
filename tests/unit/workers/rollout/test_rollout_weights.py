"""What happens to weights between transport and engine, without an engine."""

from contextlib import closing
from pathlib import Path

import pytest
import torch

from psrl.schemas.config.rollout import RolloutDtype, RolloutSection
from psrl.schemas.errors import EngineUnfit
from psrl.schemas.ids import Version
from psrl.workers.rollout.model_tensors import require_same
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


def test_what_fits_passes() -> None:
    require_same(EXPECTED, fitting(), V1)


def test_everything_that_does_not_fit_is_named() -> None:
    with pytest.raises(EngineUnfit) as caught:
        require_same(EXPECTED, {"a": torch.zeros(3, 2), "c": torch.zeros(1)}, V1)
    assert str(caught.value) == (
        "version 1 does not fit the model: missing: b; unknown: c; wrong shape: a [3, 2] instead of [2, 3]"
    )


def test_a_long_list_is_cut() -> None:
    expected = {f"t{i}": (1,) for i in range(9)}
    with pytest.raises(EngineUnfit, match="missing: t0, t1, t2, t3, t4 and 4 more"):
        require_same(expected, {}, V1)


def test_the_probe_tolerance_follows_the_number_format_unless_given() -> None:
    assert RolloutSection().weight_probe_tolerance == 0.5
    assert RolloutSection(dtype=RolloutDtype.FP32).weight_probe_tolerance == 1e-3
    assert RolloutSection(weight_probe_tolerance=0.1).weight_probe_tolerance == 0.1
