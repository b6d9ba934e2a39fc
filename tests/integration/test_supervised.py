"""What supervisord really starts."""

import os
import shlex
import time
from pathlib import Path

import pytest

from psrl.workers.stack.supervision import WORKERS, Program, Supervisor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.mark.parametrize("name", ["exp #2", "exp ;v2", "50%", "it's mine"])
def test_programs_run_in_folders_of_any_name_with_any_arguments(tmp_path: Path, name: str) -> None:
    """Field report 207."""
    home = tmp_path / name
    home.mkdir()
    script, told = home / "tell.sh", home / "told"
    lines = [f"exec > {shlex.quote(str(told))}.new", 'pwd; echo "$TMPDIR"; printf "%s\\n" "$@"']
    script.write_text("\n".join([*lines, f"mv {shlex.quote(str(told))}.new {shlex.quote(str(told))}", "exec sleep 60"]))
    arguments = ("a #b", "c ;d", "100%")
    tell = Program("tell", ("/bin/sh", str(script), *arguments), WORKERS, environment={"TMPDIR": str(home)})
    supervisor = Supervisor(home)
    supervisor.start([tell], home, dict(os.environ))
    try:
        supervisor.launch(tell)
        while not told.exists():
            time.sleep(0.02)
    finally:
        supervisor.shutdown()
    assert told.read_text().splitlines() == [str(home), str(home), *arguments]
    assert supervisor.log("tell").exists()
