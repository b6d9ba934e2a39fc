"""The engine is asked about a kind of model where only it knows."""

import subprocess
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from psrl.activities.data import engine_support
from psrl.activities.data.engine_support import UNKNOWN, require_engine_support
from psrl.schemas.errors import ModelError


@pytest.fixture(autouse=True)
def forget() -> None:
    engine_support._may_know.cache_clear()


def answers(monkeypatch: pytest.MonkeyPatch, status: int | None) -> list[str]:
    """As the engine's process does; null for one that never ends. Returns what it was asked."""
    asked: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command[-1])
        if status is None:
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, status)

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
