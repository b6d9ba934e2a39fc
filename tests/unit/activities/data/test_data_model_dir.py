"""The model directory is checked before a run starts."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BartConfig, BertConfig, Gemma3Config, PreTrainedConfig

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


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"vocab_size": 256}, r"tensor 'model\.embed_tokens\.weight' is \[128, 32\], expected \[256, 32\] by config"),
        ({"tie_word_embeddings": False}, r"tensor 'lm_head\.weight' is missing$"),
        ({"num_key_value_heads": 2}, r"tensor '.*k_proj\.bias' is \[16\], expected \[32\]"),
    ],
)
def test_weights_of_another_configuration_are_known_before_anything_loads_them(
    tiny_model_dir: Path, tmp_path: Path, values: dict[str, object], reason: str
) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    configure(model, **values)
    with pytest.raises(ModelError, match=f"does not hold the model it describes: {reason}"):
        check(model)


def test_names_that_training_put_a_prefix_before_are_shown(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    save_file({f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}, model / "model.safetensors")
    with pytest.raises(ModelError, match=r" is missing; the model has no '_orig_mod\.model\.embed_tokens\.weight', "):
        check(model)


def test_weights_in_whole_numbers_are_quantised(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].to(torch.int8)}, model / "model.safetensors")
    with pytest.raises(ModelError, match=rf"is quantised with I8 \(model\.safetensors: {name}\)"):
        check(model)


@pytest.mark.parametrize("names", [["a"], None, {}, {"a": 3}, {"a": None}])
def test_an_index_that_names_no_files_is_refused(tiny_model_dir: Path, tmp_path: Path, names: object) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ModelError, match=r"index\.json: weight_map=.*; allowed: an object that names a file for every"):
        check(model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_clone_without_git_lfs_is_told_how_to_get_the_files(tiny_model_dir: Path, tmp_path: Path, name: str) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    (model / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelError, match=rf"{name} is Git LFS's pointer to the file; `git lfs pull`"):
        check(model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_link_of_the_hubs_cache_that_leads_nowhere_is_named(tiny_model_dir: Path, tmp_path: Path, name: str) -> None:
    model = copy(tiny_model_dir, tmp_path / "model", without=name)
    (model / name).symlink_to("../../blobs/0")
    with pytest.raises(ModelError, match=rf"{name} is a link to \.\./\.\./blobs/0, which is no file"):
        check(model)


def test_a_snapshot_of_the_hubs_cache_is_accepted_and_the_cache_around_it_names_it(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "models--someone--tiny"
    (cache / "snapshots").mkdir(parents=True)
    copy(tiny_model_dir, cache / "blobs")
    copy(tiny_model_dir, cache / "snapshots" / "1f", without="*")
    for blob in (cache / "blobs").iterdir():
        (cache / "snapshots" / "1f" / blob.name).symlink_to(f"../../blobs/{blob.name}")
    check(cache / "snapshots" / "1f")
    with pytest.raises(ModelError, match=r"is the Hub's cache; allowed: model\.path=.*/snapshots/1f$"):
        check(cache)


def test_a_name_of_the_hub_is_to_be_downloaded_first() -> None:
    with pytest.raises(ModelError, match=r"someone/tiny is not a directory .*; allowed: a folder .*`hf download NAME"):
        check(Path("someone/tiny"))


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ModelError, match=r"model\.path='/x+\.\.\. cannot be looked up: File name too long"):
        check(Path("/" + 5000 * "x"))


def test_an_adapter_alone_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"holds an adapter \(adapter_config\.json\); allowed: the model that it was"):
        check(tmp_path)


ENCODER = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=128)
ENCODER_WITH_DECODER = BartConfig(
    **{"d_model": 32, "vocab_size": 128, "encoder_layers": 1, "decoder_layers": 1},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (ENCODER, r"is an encoder \(model_type bert, without is_decoder\), which sees what comes after a token"),
        (ENCODER_WITH_DECODER, r"is an encoder with a decoder \(model_type bart\)"),
    ],
)
def test_what_the_library_makes_a_causal_model_of_and_is_none_is_refused(
    tiny_model_dir: Path, tmp_path: Path, config: PreTrainedConfig, reason: str
) -> None:
    model = copy(tiny_model_dir, tmp_path / "model", without="config.json")
    config.save_pretrained(model)
    with pytest.raises(ModelError, match=f"{reason}; allowed: a causal language model"):
        check(model)


SEEING = {
    "text_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
}


def test_a_multimodal_model_that_the_library_calls_a_causal_one_is_refused_naming_its_text_model(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    model = copy(tiny_model_dir, tmp_path / "model", without="config.json")
    Gemma3Config(**SEEING).save_pretrained(model)
    reason = (
        r"is a multimodal model \(model_type gemma3, Gemma3ForConditionalGeneration\); allowed: .* Gemma3ForCausalLM$"
    )
    with pytest.raises(ModelError, match=reason):
        check(model)


def test_a_model_that_sees_is_refused_by_its_kind(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    configure(model, model_type="qwen2_5_vl")
    with pytest.raises(ModelError, match=r"model_type 'qwen2_5_vl' is no causal language model of text alone$"):
        check(model)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"hidden_act": "swiglu"}, r"'swiglu' is unknown \(config\.json: hidden_act='swiglu'\)"),
        ({"dtype": "bf16"}, r"no attribute 'bf16' \(config\.json: dtype='bf16'\)"),
        ({"quantization_config": {}}, r"config\.json: quantization_config=\{\} names no method"),
    ],
)
def test_a_value_of_the_configuration_that_nobody_knows_is_named_with_its_key(
    tiny_model_dir: Path, tmp_path: Path, values: dict[str, object], reason: str
) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    configure(model, **values)
    with pytest.raises(ModelError, match=reason):
        check(model)


def test_generation_settings_that_cannot_be_read_are_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    (model / "generation_config.json").write_text('{"max_new_tokens": "all"}')
    with pytest.raises(ModelError, match=r"generation_config\.json cannot be read: '<=' not supported"):
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


def test_a_tokenizer_that_fails_only_when_it_is_used_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = copy(tiny_model_dir, tmp_path / "model")
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": "long"}))
    with pytest.raises(ModelError, match="does not load: TypeError: "):
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


def test_a_tokenizer_of_the_folder_that_ends_the_process_is_refused(own_code: Callable[..., Path]) -> None:
    model = own_code()
    file = model / "tokenizer_config.json"
    values = {
        **json.loads(file.read_text()),
        "tokenizer_class": "Tok",
        "auto_map": {"AutoTokenizer": ["tok.Tok", None]},
    }
    file.write_text(json.dumps(values))
    (model / "tok.py").write_text("class Tok: ...\nraise SystemExit('no licence')\n")
    said = r"does not load: the model's own code failed \(tok\.py, line 2\): SystemExit: no licence$"
    with pytest.raises(ModelError, match=said):
        check(model, trust=True)


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
