"""Every family that transformers and vLLM share, from the folder to a published version and a checkpoint.

What an engine does with them is in `tests/compatibility/test_models.py`.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from psrl.activities.data.model_dir import check_model
from psrl.activities.training.batch import TrainBatch
from psrl.activities.weights.names import describe, shapes_of
from psrl.activities.weights.transport import Lease
from psrl.schemas.config import RunConfig, parse_config
from psrl.schemas.errors import ModelError, WeightsRefused
from psrl.schemas.ids import RunId
from psrl.schemas.weights import WeightProbe
from psrl.workers.rollout.model_tensors import require_same
from psrl.workers.trainer.backend import BackendRun
from psrl.workers.trainer.torch_backend import TorchBackend
from psrl.workers.trainer.world import World
from tests.support.families import FAMILIES, make_family_model
from tests.support.training import run_values, synthetic_batch

CPU = torch.device("cpu")
Tensors = Mapping[str, torch.Tensor]


class NothingPublished:
    """The run begins."""

    def probe(self, version: int) -> WeightProbe | None:
        return None

    def lease(self, version: int) -> Lease:
        raise WeightsRefused(f"version {version} is not published")


def configured(folder: Path) -> RunConfig:
    return parse_config(run_values(model={"path": str(folder)}, actor={"optim": {"lr": 0.01}}))


def begun(folder: Path) -> TorchBackend:
    """A trainer that holds version 0."""

    def batch(buffer: int) -> TrainBatch:
        return synthetic_batch(2, 2, seed=buffer)

    backend = TorchBackend(BackendRun(RunId("run"), configured(folder), batch, NothingPublished()), World(), CPU)
    backend.start()
    return backend


def files_of(folder: Path) -> Tensors:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def rewrite(folder: Path, tensors: Tensors) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], tensor) for name, tensor in other.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_admitted_trained_published_and_saved_by_the_names_of_its_own_files(
    family: str, tmp_path: Path
) -> None:
    folder = make_family_model(family, tmp_path / "model")
    check_model(configured(folder))
    backend = begun(folder)
    published, files = backend.export(), files_of(folder)
    assert equal(published, files)
    assert shapes_of(published) == describe(backend.run.config.model).shapes, "what an engine waits for"

    backend.step(0).update()
    moved = backend.export()
    assert not equal(moved, files)
    (tmp_path / "saved").mkdir()
    backend.snapshot().write(tmp_path / "saved")
    assert equal(files_of(tmp_path / "saved"), moved)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    trained = backend.held.model.state_dict()
    assert equal(loaded.state_dict(), trained)
    assert equal(backend.held.with_published(moved).state_dict(), trained), "as the engine gap is measured"


def test_tensors_that_the_model_does_not_have_are_ignored_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_family_model("qwen2", tmp_path / "model")
    plain = files_of(folder)
    foreign = ("mtp.layers.0.weight", "rotary.inv_freq", "v_head.summary.weight")
    head = {"lm_head.weight": plain["model.embed_tokens.weight"].clone()}
    rewrite(folder, {**plain, **{name: torch.zeros(3) for name in foreign}, **head})
    for stray in ("adapter_model", "consolidated"):
        save_file({"stray": torch.zeros(3)}, folder / f"{stray}.safetensors")
    check_model(configured(folder))
    backend = begun(folder)
    require_same(describe(backend.run.config.model).shapes, backend.export(), version=0)
    assert equal(backend.export(), plain)
    said = [record.message for record in caplog.records if "ignored in model.path" in record.message]
    assert said == [
        f"run run: ignored in model.path={folder}, because the model has no such tensor: {', '.join(foreign)}"
    ]


def test_the_index_says_which_files_hold_the_model(tmp_path: Path) -> None:
    folder = make_family_model("llama", tmp_path / "model")
    plain = files_of(folder)
    other = make_family_model("llama", tmp_path / "other", seed=1)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (other / "model.safetensors").rename(folder / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(plain, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_model(configured(folder))
    backend = begun(folder)
    assert equal(backend.export(), plain)
    backend.snapshot().write(tmp_path / "saved")
    assert "transformers_weights" not in json.loads((tmp_path / "saved" / "config.json").read_text())


@pytest.mark.parametrize(
    ("family", "older", "newer"),
    [
        ("gpt2", "h.", "transformer.h."),  # as the Hub has it
        ("gpt_neox", "lm_head.", "embed_out."),
    ],
)
def test_other_names_in_the_files_change_nothing_that_is_published(
    family: str, older: str, newer: str, tmp_path: Path
) -> None:
    folder = make_family_model(family, tmp_path / "model")
    plain = files_of(folder)
    rewrite(folder, {name.replace(newer, older): tensor for name, tensor in plain.items()})
    assert files_of(folder).keys() != plain.keys()
    backend = begun(folder)
    assert equal(backend.export(), plain)
    (tmp_path / "saved").mkdir()
    backend.snapshot().write(tmp_path / "saved")
    assert equal(files_of(tmp_path / "saved"), plain)


def test_experts_that_a_file_holds_fused_are_published_one_by_one(tmp_path: Path) -> None:
    folder = make_family_model("qwen3_moe", tmp_path / "model")
    plain = files_of(folder)
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "fused", save_original_format=False)
    (folder / "model.safetensors").unlink()
    rewrite(folder, files_of(tmp_path / "fused"))
    assert files_of(folder).keys() != plain.keys()
    assert equal(begun(folder).export(), plain)


def test_tied_tensors_with_values_of_their_own_are_refused(tmp_path: Path) -> None:
    folder = make_family_model("opt", tmp_path / "model")
    plain = files_of(folder)
    [embedding] = [tensor for name, tensor in plain.items() if name.endswith("embed_tokens.weight")]
    rewrite(folder, {**plain, "lm_head.weight": embedding + 1})
    with pytest.raises(ModelError, match=r"'lm_head\.weight' has values of its own, while config\.json ties it"):
        begun(folder)


def test_attention_scores_are_capped_where_the_configuration_says_so(tmp_path: Path) -> None:
    """The library's fast attention would leave the cap out."""
    folder = make_family_model("gemma2", tmp_path / "model", attn_logit_softcapping=1.0)
    model = begun(folder).held.model
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, plain(ids).logits, atol=1e-5)


def test_keys_that_change_what_a_forward_pass_returns_are_not_heeded(tmp_path: Path) -> None:
    folder = make_family_model("qwen2", tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    said = {"return_dict": False, "output_attentions": True, "output_hidden_states": True}
    (folder / "config.json").write_text(json.dumps({**values, **said}))
    begun(folder).probe()


@pytest.mark.parametrize("settings", ['{"do_sample": false, "temperature": 0.6}', '{"pad_token_id": -1}', "{"])
def test_generation_settings_are_saved_as_the_folder_has_them(tmp_path: Path, settings: str) -> None:
    folder = make_family_model("qwen2", tmp_path / "model")
    (folder / "generation_config.json").write_text(settings)
    check_model(configured(folder))
    (tmp_path / "saved").mkdir()
    begun(folder).snapshot().write(tmp_path / "saved")
    assert (tmp_path / "saved" / "generation_config.json").read_text() == settings


def test_generation_settings_in_the_configuration_do_not_keep_a_checkpoint_from_being_written(tmp_path: Path) -> None:
    folder = make_family_model("qwen2", tmp_path / "model")
    (folder / "generation_config.json").unlink()
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "do_sample": False, "temperature": 0.6}))
    (tmp_path / "saved").mkdir()
    begun(folder).snapshot().write(tmp_path / "saved")
    AutoModelForCausalLM.from_pretrained(tmp_path / "saved")


def test_weights_that_are_no_numbers_end_the_run_at_once(tmp_path: Path) -> None:
    folder = make_family_model("qwen2", tmp_path / "model")
    plain = files_of(folder)
    rewrite(folder, {**plain, "model.norm.weight": plain["model.norm.weight"] * float("nan")})
    with pytest.raises(ModelError, match="computes no numbers: its log-probs are nan"):
        begun(folder)


def test_a_model_whose_parts_do_not_fit_together_ends_the_run_at_once(tmp_path: Path) -> None:
    folder = make_family_model("qwen2", tmp_path / "model", num_attention_heads=4, num_key_value_heads=3)
    with pytest.raises(ModelError, match="cannot be computed with: RuntimeError: "):
        begun(folder)
