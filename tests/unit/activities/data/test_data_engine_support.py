"""The engine is asked about a kind of model where only it knows."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from psrl.activities.data import engine_support
from psrl.activities.data.engine_support import BROKEN, UNKNOWN, require_engine_support
from psrl.schemas.errors import ModelError


@pytest.fixture(autouse=True)
def forget() -> None:
    engine_support._asked.cache_clear()


def answers(monkeypatch: pytest.MonkeyPatch, status: int | None, why: str = "") -> list[str]:
    """As the engine's process does; null for one that never ends. Returns what it was asked."""
    asked: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command[-1])
        if status is None:
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, status, stdout=f"INFO: loading\n{why}\n")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def model(family: str) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family))


def test_a_kind_that_the_engine_does_not_know_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, UNKNOWN)
    with pytest.raises(ModelError, match=r"vLLM has no code for GPTNeoForCausalLM \(model_type gpt_neo\)"):
        require_engine_support("m", model("gpt_neo"))
    assert asked == ["GPTNeoForCausalLM"]


@pytest.mark.parametrize("status", [0, 1, None])
def test_a_kind_that_it_knows_or_says_nothing_of_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    asked = answers(monkeypatch, status)
    require_engine_support("m", model("bloom"))
    assert asked == ["BloomForCausalLM"]


def test_it_is_not_asked_about_what_it_runs_by_the_librarys_code(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, UNKNOWN)
    require_engine_support("m", model("qwen2"))
    assert asked == []


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_text", "gemma3_text"])
def test_a_kind_whose_code_the_engine_cannot_load_is_refused_naming_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    answers(monkeypatch, BROKEN, "ModuleNotFoundError: No module named 'torchvision'")
    with pytest.raises(ModelError, match=r"cannot load its code for .*ForCausalLM .*; install torchvision where"):
        require_engine_support("m", model(family))


def test_code_that_cannot_be_loaded_for_another_reason_is_refused_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, BROKEN, "RuntimeError: operator torchvision::nms does not exist")
    with pytest.raises(ModelError, match=r"RuntimeError: operator torchvision::nms does not exist; allowed: a model"):
        require_engine_support("m", model("qwen3_5_text"))


def test_a_family_of_more_than_text_that_the_library_runs_needs_no_code_of_the_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = answers(monkeypatch, UNKNOWN)
    require_engine_support("m", model("gemma3_text"))
    assert asked == ["Gemma3ForCausalLM"]


VLLM = """
class Model:
    def load_model_cls(self):
        try:
            import package_that_is_missing
        except ImportError as error:
            raise RuntimeError("processor not found")

class ModelRegistry:
    models = {"Qwen3_5ForCausalLM": Model()}
"""


def test_the_engine_itself_says_what_its_code_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text(VLLM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ModelError, match=r"No module named 'package_that_is_missing'; install package_that_is_missing"):
        require_engine_support("m", model("qwen3_5_text"))
