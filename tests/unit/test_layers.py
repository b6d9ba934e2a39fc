"""What importing the light parts loads."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "sqlalchemy", "fastapi", "transformers", "numpy")


@pytest.mark.parametrize(
    "module",
    [
        "psrl.workflows.run.training_run",
        "psrl.activities.signatures",
        "psrl.schemas.stack",
        "psrl.activities.capture.message",
        "psrl.activities.capture.render",
    ],
)
def test_importing_a_light_part_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module",
    [
        *(f"psrl.workers.trainer.{name}" for name in ("stages", "tenancy", "recovery", "checkpoints", "publisher")),
        "psrl.activities.weights.transports",
    ],
)
def test_what_decides_for_the_trainer_loads_no_tensor_library(module: str) -> None:
    program = f"import sys, {module}; print([n for n in ('torch', 'safetensors', 'transformers') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
