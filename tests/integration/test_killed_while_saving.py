"""A process ended by SIGKILL at every write of a save: what is found afterwards is always a whole version."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration
REPOSITORY = Path(__file__).parents[2]


def deaths(what: str, model: Path, folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.support.kill_at_write", what, str(model), str(folder)]
    ours = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "src")))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ours}
    with (folder / "output").open("wb") as output, (folder / "log").open("wb") as log:
        done = subprocess.run(command, env=environment, stdout=output, stderr=log, timeout=150, check=False)
    assert done.returncode == 0, (folder / "log").read_text()[-3000:]
    return json.loads((folder / "output").read_text())  # type: ignore[no-any-return]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", ["checkpoint", "weights"])
def test_a_save_killed_at_any_write_leaves_the_version_before_or_the_new_one(
    tiny_model_dir: Path, tmp_path: Path, what: str
) -> None:
    *killed, whole = deaths(what, tiny_model_dir, tmp_path)
    points = [death["point"] for death in killed]
    assert len(points) > {"checkpoint": 20, "weights": 12}[what]
    assert any(point.startswith("amid ") for point in points)
    assert {"fsync"} | {point.split()[0] for point in points} >= {"fsync", "open", "os.rename", "shutil.rmtree"}
    found = [death["found"] for death in killed]
    assert None not in found, points[found.index(None)]
    assert found == sorted(found), "once the new version is there, it stays"
    assert {1, 2} == set(found)
    assert all(death["again"] for death in killed), "the next save makes good what was left"
    assert (whole["killed"], whole["found"]) == (False, 2)
