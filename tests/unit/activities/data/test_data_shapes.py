"""Data as people have them either become prompts or are refused by their place."""

from pathlib import Path

import pytest

from psrl.activities.data.dataset import load_dataset
from psrl.schemas.config import parse_config
from psrl.schemas.errors import DataError
from tests.support.data_shapes import SHAPES, Shape
from tests.support.runs import config_values


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_is_read_or_refused_by_its_place(shape: Shape, tiny_model_dir: Path, tmp_path: Path) -> None:
    train = shape.write(tmp_path)
    config = parse_config(config_values(tiny_model_dir, train, data={"max_prompt_length": 10_000, **shape.data}))
    if shape.refused:
        with pytest.raises(DataError, match=shape.refused):
            load_dataset(config)
        return
    dataset = load_dataset(config)
    assert tuple(prompt.text for prompt in dataset.train) == shape.prompts
    first = dataset.train[0]
    assert first.ground_truth == shape.ground_truth
    if shape.extra:
        assert first.extra == shape.extra
    assert len(dataset.notes) == len(shape.notes)
    for told, expected in zip(dataset.notes, shape.notes, strict=True):
        assert told.startswith(expected)
