"""The model directory is checked before a run starts."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

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


def check(model: Path, trust: bool = False, **data: int) -> None:
    values = config_values(model, Path("unread.jsonl"), data=data, model={"trust_remote_code": trust})
    check_model(parse_config(values))


def configure(model: Path, **values: object) -> None:
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_whole_model_that_fits_is_accepted(tiny_model_dir: Path) -> None:
    check(tiny_model_dir, max_prompt_length=32, max_response_length=32)


def test_prompt_and_response_longer_than_the_context_are_refused_naming_the_keys(tiny_model_dir: Path) -> None:
    wanted = r"data\.max_prompt_length=32 \+ data\.max_response_length=33 = 65 .* allowed: at most 64 tokens"
    with pytest.raises(ModelError, match=wanted):
        check(tiny_model_dir, max_prompt_length=32, max_response_length=33)


@pytest.mark.parametrize(
    ("without", "reason"),
    [
        ("*.safetensors", r"has no weights; expected model\.safetensors or .*, found .*config\.json"),
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


@pytest.mark.parametrize(
    ("values", "method"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
        ({"text_config": {"quantization_config": {"quant_method": "mxfp4"}}}, "mxfp4"),
    ],
)
def test_a_quantised_model_is_refused_naming_the_method(
    tiny_model_dir: Path, tmp_path: Path, values: dict[str, object], method: str
) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    configure(model, **values)
    with pytest.raises(ModelError, match=f"is quantised with {method} .*weights to be trained must be unquantised"):
        check(model)


@pytest.mark.parametrize(
    ("name", "tensor", "method"),
    [
        ("model.layers.0.mlp.up_proj.qweight", torch.zeros(2, dtype=torch.int32), "GPTQ or AWQ"),
        ("model.layers.0.mlp.up_proj.weight", torch.zeros(2).to(torch.float8_e4m3fn), "F8_E4M3"),
    ],
)
def test_quantised_weights_are_known_by_their_files_where_the_configuration_is_silent(
    tiny_model_dir: Path, tmp_path: Path, name: str, tensor: torch.Tensor, method: str
) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    save_file({name: tensor}, model / "model.safetensors")
    with pytest.raises(ModelError, match=f"is quantised with {method} .*model.safetensors: {name}"):
        check(model)


def test_other_files_beside_the_weights_are_not_looked_at(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    (model / "consolidated.safetensors").write_bytes(b"cut short")
    check(model)


OWN_CODE = """
from transformers import Qwen2Config, Qwen2ForCausalLM


class OwnConfig(Qwen2Config):
    model_type = "own"


class OwnModel(Qwen2ForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        {when_made}


{when_imported}
"""


@pytest.fixture
def own_code(tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A model whose classes lie in its folder."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))

    def make(when_imported: str = "", when_made: str = "pass") -> Path:
        model = copy(tiny_model_dir, tmp_path / "model")
        classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
        configure(model, model_type="own", auto_map=classes)
        (model / "own.py").write_text(OWN_CODE.format(when_imported=when_imported, when_made=when_made))
        return model

    return make


def test_code_of_the_folder_runs_only_where_that_is_allowed(own_code: Callable[..., Path]) -> None:
    model = own_code()
    with pytest.raises(ModelError, match=r"needs code from its own folder; allowed: model\.trust_remote_code=true"):
        check(model)
    check(model, trust=True)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ({"when_imported": "import absent_package"}, r"ImportError: .*absent_package.*; install absent_package$"),
        (
            {"when_made": "__import__('absent.part')"},
            r" \(own\.py, line 14\): ModuleNotFoundError: .*; install absent$",
        ),
        ({"when_imported": "{}['rope']"}, r" \(own\.py, line 17\): KeyError: 'rope'$"),
        ({"when_imported": "raise SystemExit('no GPU')"}, r" \(own\.py, line 17\): SystemExit: no GPU$"),
        ({"when_made": "config.absent"}, r" \(own\.py, line 14\): AttributeError: .*'absent'"),
    ],
)
def test_code_of_the_folder_that_fails_is_refused_saying_where_and_what_to_install(
    own_code: Callable[..., Path], code: dict[str, str], said: str
) -> None:
    with pytest.raises(ModelError, match=f"the model's own code failed.*{said}"):
        check(own_code(**code), trust=True)


def test_a_model_of_an_unknown_kind_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    configure(model, model_type="tomorrow")
    with pytest.raises(ModelError, match=r"cannot be read as a causal LM: .*`tomorrow`"):
        check(model)


def test_the_context_is_the_stretched_one(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    configure(model, rope_scaling={"type": "linear", "factor": 4.0}, rope_parameters=None)
    check(model, max_prompt_length=128, max_response_length=128)
    with pytest.raises(ModelError, match=r"= 257 .* allowed: at most 256 tokens"):
        check(model, max_prompt_length=128, max_response_length=129)
