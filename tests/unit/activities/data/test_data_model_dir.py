"""The model directory is checked before a run starts."""

import json
import os
from pathlib import Path

import pytest

from psrl.activities.data.model_dir import check_model
from psrl.schemas.config import parse_config
from psrl.schemas.errors import ModelError
from tests.support.runs import config_values


def copy(source: Path, target: Path, without: str = "") -> Path:
    target.mkdir()
    for file in source.iterdir():
        if not (without and file.match(without)):
            (target / file.name).write_bytes(file.read_bytes())
    return target


def check(model: Path, **data: int) -> None:
    check_model(parse_config(config_values(model, Path("unread.jsonl"), data=data)))


def test_a_whole_model_that_fits_is_accepted(tiny_model_dir: Path) -> None:
    check(tiny_model_dir, max_prompt_length=32, max_response_length=32)


def test_prompt_and_response_longer_than_the_context_are_refused_naming_the_keys(tiny_model_dir: Path) -> None:
    wanted = r"data\.max_prompt_length=32 \+ data\.max_response_length=33 = 65 .* allowed: at most 64 tokens"
    with pytest.raises(ModelError, match=wanted):
        check(tiny_model_dir, max_prompt_length=32, max_response_length=33)


@pytest.mark.parametrize(
    ("without", "reason"),
    [
        ("*.safetensors", r"has no weights; expected \*\.safetensors, found .*config\.json"),
        ("token*", "has no tokenizer"),  # the chat template stays: it is none
        ("tokenizer.json", "has no vocabulary"),
        ("config.json", r"has no config\.json"),
        ("*", r"has no config\.json"),
    ],
)
def test_a_directory_without_its_parts_is_refused(
    tiny_model_dir: Path, tmp_path: Path, without: str, reason: str
) -> None:
    model = copy(tiny_model_dir, tmp_path / "model", without)
    with pytest.raises(ModelError, match=reason):
        check(model)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.path=.*/none is not a directory"):
        check(tmp_path / "none")


def test_a_missing_shard_is_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"lacks model-00002\.safetensors"):
        check(model)


def test_weights_cut_short_are_named_before_anything_loads_them(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    os.truncate(model / "model.safetensors", 1000)
    with pytest.raises(ModelError, match=r"model\.safetensors in model\.path=.* is damaged"):
        check(model)


def test_a_tokenizer_of_another_model_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    values = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**values, "vocab_size": 64}))
    with pytest.raises(ModelError, match=r"the tokenizer has 128 tokens, the model only vocab_size=64"):
        check(model)


def test_a_damaged_tokenizer_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    (model / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="does not load"):
        check(model)
