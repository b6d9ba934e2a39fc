"""Changes the code in one place at a time and runs the tests that must notice, with cosmic-ray, on a copy of the tree.

Prints the changes that no test noticed and the share of them. A run that was ended goes on where it was; remove
`.cache/mutants` to begin anew.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .rooms import ROOMS, Room, room_of

REPOSITORY = Path(__file__).parents[2]
PLACE = REPOSITORY / ".cache" / "mutants"
TREE = PLACE / "tree"
CONFIGURATION = """\
[cosmic-ray]
module-path = "{code}"
timeout = {timeout_s}
excluded-modules = []
test-command = "{python} -m pytest -x -q -n 0 -p no:cacheprovider {tests}"

[cosmic-ray.distributor]
name = "local"
"""


def main(chosen: list[str]) -> None:
    if not TREE.exists():
        copy()
    for room in [room_of(code) for code in chosen] or ROOMS:
        look(room)


def copy() -> None:
    """What git knows or would add: the links under src/ stay links, to the copied folders."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if os.path.lexists(REPOSITORY / name):
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, TREE / name, follow_symlinks=False)


def look(room: Room) -> None:
    name = room.code.replace("/", "-").removesuffix(".py")
    configuration, session = PLACE / f"{name}.toml", PLACE / f"{name}.sqlite"
    values = {"code": room.code, "timeout_s": room.timeout_s, "tests": " ".join(room.tests)}
    configuration.write_text(CONFIGURATION.format(python=sys.executable, **values))
    if not session.exists():
        tool("cosmic-ray", "baseline", str(configuration))
        tool("cosmic-ray", "init", str(configuration), str(session))
    tool("cosmic-ray", "exec", str(configuration), str(session))
    print(f"== {room.code}: changes that no test noticed")
    tool("cr-report", "--surviving-only", "--show-diff", "--no-show-output", str(session))


def tool(name: str, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TREE / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(Path(sys.executable).parent / name), *arguments]
    subprocess.run(command, cwd=TREE, env=environment, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
