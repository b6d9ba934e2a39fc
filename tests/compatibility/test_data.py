"""Every shape of data of `tests/support/data_shapes/`: what admission makes of it."""

from pathlib import Path

import pytest

from psrl.activities.data.dataset import load_dataset
from psrl.schemas.config import parse_config
from psrl.schemas.errors import DataError
from tests.compatibility.matrix import YES, Record
from tests.support.data_shapes import SHAPES, Shape
from tests.support.runs import config_values


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_is_read_or_refused(shape: Shape, tiny_model_dir: Path, tmp_path: Path, record: Record) -> None:
    train = shape.write(tmp_path)
    config = parse_config(config_values(tiny_model_dir, train, data={"max_prompt_length": 10_000, **shape.data}))
    try:
        dataset = load_dataset(config)
    except DataError as refused:
        admitted, remark = "refused", str(refused)
    else:
        admitted, remark = YES, "; ".join(note.partition(" (")[0] for note in dataset.notes)
    record(
        "data", shape.name, {"admitted": admitted}, remark.replace(str(train), train.name).replace(str(tmp_path), ".")
    )
    assert (admitted == YES) == (not shape.refused)
