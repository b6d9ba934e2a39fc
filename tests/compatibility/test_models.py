"""Two real steps of every family with a real vLLM engine, as people start them; then plain transformers reads what was
saved. The rows of the page are what was seen."""

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from psrl.activities.data.engine_support import require_engine_support
from psrl.activities.data.model_dir import check_model
from psrl.schemas.config import parse_config
from psrl.schemas.errors import ModelError
from psrl.schemas.stack import load_stack
from tests.compatibility.contexts import YARN
from tests.compatibility.matrix import YES, Record
from tests.support.commands import psrl, running_stack
from tests.support.families import CONTEXT, FAMILIES, make_family_model
from tests.support.runs import config_values, sums, write_jsonl

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

STEPS = 2
TOLERANCE = 1e-4
PROMPT = 24
STRETCHED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "yarn": ("qwen2", {"rope_scaling": YARN, "max_position_embeddings": 4 * CONTEXT}),
}


class Lacking(NamedTuple):
    said: str
    remark: str


LACKING: Final = {
    "deepseek_v3": Lacking(
        "expect weight to be bfloat16",
        "vLLM on CPU has no float32 kernel for its attention (MLA); admission, publishing and checkpoint are tested "
        "without an engine",
    )
}
"""What vLLM on CPU cannot do, and what it says."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One stack for all families: its engine is made anew for each."""
    with running_stack(tmp_path_factory.mktemp("families") / "home") as home:
        yield home


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in LACKING])
def test_a_family_trains_with_a_real_engine(family: str, home: Path, tmp_path: Path, record: Record) -> None:
    model = make_family_model(family, tmp_path / "model")
    trains(family, family, configuration(model, tmp_path), home, record)


@pytest.mark.parametrize("kind", STRETCHED)
def test_a_model_of_a_stretched_context_trains_beyond_the_original_one(
    kind: str, home: Path, tmp_path: Path, record: Record
) -> None:
    family, changes = STRETCHED[kind]
    model = make_family_model(family, tmp_path / "model", **changes)
    values = configuration(model, tmp_path, response=4 * CONTEXT - PROMPT)
    trains(f"{family}, {kind} rope, factor 4", kind, values, home, record)


def trains(row: str, run: str, values: dict[str, Any], home: Path, record: Record) -> None:
    """Two steps as people start them, and what they left; the row says how far it came."""
    cells: dict[str, str] = {}
    remark, file = "", home / f"{run}.yaml"
    try:
        check_model(parse_config(values))
        cells["admitted"] = YES
        file.write_text(json.dumps(values))
        psrl(home, "train", str(file), "--run", run, timeout_s=800)
        cells["two steps"] = YES
        gap = largest_gap(home, run)
        cells["engine gap"] = f"{gap:.0e}"
        assert gap < TOLERANCE
        loads(home / "checkpoints" / run / f"step_{STEPS:06d}")
        cells["checkpoint"] = YES
    except AssertionError as failure:
        remark = str(failure)[-300:]
        raise
    finally:
        record("models", row, cells, remark)


@pytest.mark.parametrize("family", LACKING)
def test_a_family_for_which_the_engine_lacks_a_kernel_ends_at_once_saying_so(
    family: str, home: Path, tmp_path: Path, record: Record
) -> None:
    lacking = LACKING[family]
    file, cells = tmp_path / "run.yaml", {}
    values = configuration(make_family_model(family, tmp_path / "model"), tmp_path)
    check_model(parse_config(values))
    cells["admitted"] = YES
    file.write_text(json.dumps(values))
    try:
        with pytest.raises(AssertionError) as failure:
            psrl(home, "train", str(file), "--run", family, timeout_s=800)
        told = str(failure.value)
        assert re.search(rf"no rollout instance is left: .*EngineUnfit: vLLM cannot run .*{lacking.said}", told), told
        cells["two steps"] = "no"
    finally:
        record("models", family, cells, lacking.remark)


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="nothing is missing here")
def test_a_family_whose_code_the_engine_cannot_load_here_is_refused_at_admission() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_5_text"))
    with pytest.raises(ModelError, match=r"vLLM cannot load its code .*; install torchvision where the engines run"):
        require_engine_support("m", model)


def test_an_engine_that_dies_in_its_first_forward_pass_ends_the_run_at_once_saying_why(
    home: Path, tmp_path: Path
) -> None:
    model = make_family_model("qwen2", tmp_path / "model", hidden_size=32)
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(configuration(model, tmp_path)))
    with pytest.raises(AssertionError, match=r"EngineUnfit: vLLM cannot run .*head_dim=16"):
        psrl(home, "train", str(file), "--run", "head-16", timeout_s=800)


def configuration(model: Path, folder: Path, response: int = 16) -> dict[str, Any]:
    return config_values(
        model,
        write_jsonl(folder / "train.jsonl", sums(16)),
        data={"max_prompt_length": PROMPT, "max_response_length": response},
        rollout={"dtype": "float32", "kv_cache_gb": 0.032},
        actor={"optim": {"lr": 0.01}},
        psrl={"staleness": 0, "staleness_buffer_entries": 4, "rollout_n": 4},
        trainer={"total_training_steps": STEPS},
    )


def largest_gap(home: Path, run: str) -> float:
    """Of any token, under the weights that it was sampled with."""
    url = load_stack(home).postgres_url.replace("+psycopg", "")
    query = "SELECT metrics -> 'log_probs' FROM step_metrics WHERE run_id = %s"
    with psycopg.connect(url) as connection:
        steps = [row[0] for row in connection.execute(query, (run,))]
    assert len(steps) == STEPS
    assert all(step["engine_gap_tokens"] for step in steps)
    return max(float(step["engine_gap_max_abs"]) for step in steps)


def loads(checkpoint: Path) -> None:
    _, loading = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    assert not any(loading.values()), loading
