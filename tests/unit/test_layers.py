"""What importing the light parts loads."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "sqlalchemy", "fastapi", "transformers", "numpy")


@pytest.mark.parametrize(
    "module", ["psrl.workflows.run.training_run", "psrl.activities.signatures", "psrl.schemas.stack"]
)
def test_importing_a_light_part_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
