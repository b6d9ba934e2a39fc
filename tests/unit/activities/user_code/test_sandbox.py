"""Programs in a sandbox: what they do is bounded, and nothing of them is left."""

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from psrl.activities.user_code import sandbox
from psrl.activities.user_code.sandbox import PYTHON, Limits, Ran, run, unconfined
from psrl.schemas.errors import UserCodeFailed

SYSTEM_PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or PYTHON
"""One that a user without rights can start: where programs are not confined, root's own Python may be out of reach."""

walls = pytest.mark.skipif(bool(unconfined()), reason=unconfined() or "confined")
both = pytest.mark.parametrize("confined", [pytest.param(True, marks=walls, id="confined"), False])


async def python(code: str, confined: bool | None = None, stdin: str = "", **limits: float) -> Ran:
    program = [SYSTEM_PYTHON, "-I", "-c", code]
    return await run(program, stdin=stdin, limits=Limits.model_validate(limits), confined=confined)


@both
async def test_a_program_has_its_files_and_its_input_and_nothing_of_the_workers_environment(
    confined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "swordfish")
    code = "import os, sys; print(open('pkg/data').read(), sys.stdin.read()); print(dict(os.environ), file=sys.stderr)"
    program = [SYSTEM_PYTHON, "-I", "-c", code]
    ran = await run(program, files={"pkg/data": b"one", "other": "x"}, stdin="two", confined=confined)
    assert (ran.exit, ran.stdout, ran.killed_by, ran.timed_out) == (0, "one two\n", "", False)
    assert "PATH" in ran.stderr
    assert "SECRET_KEY" not in ran.stderr


@both
async def test_its_own_end_is_told_as_it_was(confined: bool) -> None:
    assert (await python("import sys; sys.exit(3)", confined)).exit == 3
    assert (await python("import os; os.kill(os.getpid(), 11)", confined)).exit == -signal.SIGSEGV
    assert (await python("print('\\ud800'.encode('utf-8', 'surrogatepass'))", confined)).stdout.startswith("b'")


@both
async def test_more_input_than_it_reads_is_no_trouble(confined: bool) -> None:
    ran = await python("print('done')", confined, stdin="x" * 1_000_000)
    assert (ran.exit, ran.stdout) == (0, "done\n")


@both
@pytest.mark.parametrize(
    ("code", "killed_by"),
    [
        pytest.param("while True: pass", "cpu", id="endless loop"),
        pytest.param("import time; time.sleep(60)", "time", id="sleep"),
        pytest.param("import sys\nwhile True: sys.stdout.write('x' * 1000)", "output", id="endless output"),
        pytest.param("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output", id="endless complaint"),
        pytest.param(
            "import os, time\nfor _ in range(4): os.fork()\nheld = os.urandom(1 << 20) * 60\ntime.sleep(60)",
            "memory",
            id="memory of several",
        ),
        pytest.param(
            "import mmap, time\nheld = mmap.mmap(-1, 400 << 20)\n"
            "for at in range(0, 400 << 20, 4096): held[at] = 1\ntime.sleep(60)",
            "memory",
            id="memory to be shared",
        ),
    ],
)
async def test_a_program_past_a_limit_is_ended_and_the_limit_named(confined: bool, code: str, killed_by: str) -> None:
    wall_s = 1 if killed_by == "time" else 60
    ran = await python(code, confined, wall_s=wall_s, cpu_s=1, memory_mb=128, output_bytes=4000)
    assert ran.killed_by == killed_by
    assert ran.exit < 0
    assert ran.timed_out == (killed_by in ("cpu", "time"))
    assert max(len(ran.stdout), len(ran.stderr)) <= 4000


@both
async def test_what_a_program_may_not_have_is_refused_to_it_by_name(confined: bool) -> None:
    hog = await python("bytearray(1 << 30)", confined, memory_mb=128)
    assert (hog.exit, hog.stderr.splitlines()[-1]) == (1, "MemoryError")
    large = await python("open('large', 'wb').write(bytes(3 << 20))", confined, disk_mb=2)
    assert "File too large" in large.stderr


@both
async def test_a_fork_bomb_stays_within_its_number_of_processes(confined: bool) -> None:
    code = """
import os, time
children = 0
try:
    while True:
        if not os.fork():
            time.sleep(60)
        children += 1
except BlockingIOError:
    print(children)
"""
    ran = await python(code, confined, processes=8)
    assert ran.exit == 0
    # In the open, those of the user's other programs count, too: they may have ended meanwhile.
    assert int(ran.stdout) >= 1
    assert not confined or int(ran.stdout) <= 8
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert (await python(bomb, confined, processes=8, wall_s=1, cpu_s=5)).killed_by == "time"
    assert not left_behind(bomb)


def left_behind(code: str) -> list[int]:
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        if code in (one.info["cmdline"] or []) and one.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(one.pid)
    return found


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
print("left one")
"""


@both
async def test_a_daemon_that_it_leaves_behind_is_ended(confined: bool) -> None:
    assert (await python(DAEMON, confined)).stdout == "left one\n"
    assert not left_behind(DAEMON)


@walls
async def test_a_confined_program_reaches_no_network_but_its_own_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert (await python(f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)", False)).exit == 0
        refused = await python(f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)", True)
    assert "Connection refused" in refused.stderr
    outside = await python("import socket; socket.create_connection(('192.0.2.1', 80), 5)", True)
    assert "Network is unreachable" in outside.stderr
    own = "import socket\nwith socket.create_server(('127.0.0.1', 0)) as s: socket.create_connection(s.getsockname())"
    assert (await python(own, True)).exit == 0


@walls
async def test_a_confined_program_sees_nobody_elses_files_and_processes_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("swordfish")
    code = f"""
import os
from pathlib import Path
print(Path({str(tmp_path / "secret")!r}).exists(), len([one for one in os.listdir("/proc") if one.isdigit()]))
for place in ("/usr/x", os.path.realpath({SYSTEM_PYTHON!r}), "/etc/passwd"):
    try:
        open(place, "a")
    except OSError as error:
        print(type(error).__name__, error.strerror)
"""
    ran = await python(code, True)
    assert ran.stdout.splitlines()[0] == "False 2"  # the one that watches, and itself
    assert len(ran.stdout.splitlines()) == 4
    assert (await run([PYTHON, "-c", "import pydantic"], confined=True)).exit == 0


@walls
async def test_all_files_of_a_confined_program_together_are_limited() -> None:
    code = "for n in range(9): open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))"
    assert "No space left" in (await python(code, True, disk_mb=4)).stderr


@walls
async def test_a_confined_program_makes_no_namespaces_in_which_it_would_be_root() -> None:
    code = "import ctypes, os\nprint(ctypes.CDLL(None, use_errno=True).unshare(0x10000000), ctypes.get_errno())"
    assert (await python(code)).stdout == f"-1 {errno.ENOSPC}\n"


async def test_programs_in_the_open_leave_room_for_those_that_begin_after_them() -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[0])"
    ran = await python(code, confined=False, processes=8)
    assert int(ran.stdout) >= 8 * ((os.cpu_count() or 1) + 1)


async def test_files_lie_in_its_folder() -> None:
    for name in ("/etc/passwd", "../up", "a/../../up"):
        with pytest.raises(ValueError, match="allowed: paths in the program's folder"):
            await run([PYTHON], files={name: ""})


@both
async def test_a_program_that_cannot_be_started_is_an_error_and_says_so(confined: bool) -> None:
    with pytest.raises(UserCodeFailed, match=r"could not run it: .*No such file or directory: '/no/such/program'"):
        await run(["/no/such/program"], confined=confined)


async def test_a_machine_without_a_place_for_its_folder_is_an_error_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(UserCodeFailed, match="the sandbox has no place for a folder: FileNotFoundError"):
        await python("print(1)", confined=False)


def test_where_the_machine_allows_no_walls_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = "raise PermissionError(1, 'unshare: Operation not permitted')"
    monkeypatch.setattr(sandbox, "COMMAND", [sys.executable, "-I", "-S", "-c", refused])
    why = "the sandbox could not run it: PermissionError: [Errno 1] unshare: Operation not permitted"
    assert sandbox.unconfined.__wrapped__() == sandbox.unusable.__wrapped__() == why


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders of programs that are not confined are made."""
    for place in (tmp_path, *tmp_path.parents):
        if not place.stat().st_mode & 0o001:  # pytest's own, however many there are
            place.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@both
async def test_a_cancelled_run_leaves_nothing(confined: bool, folders: Path) -> None:
    code = DAEMON.replace('print("left one")', "time.sleep(600)") + f"# {confined}"
    task = asyncio.create_task(python(code, confined, wall_s=60))
    while len(left_behind(code)) < 2:  # noqa: ASYNC110  (processes set no asyncio event)
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while left_behind(code) or os.listdir(folders):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@both
def test_nothing_is_left_when_the_process_that_called_is_killed(confined: bool, folders: Path) -> None:
    code = DAEMON.replace('print("left one")', "time.sleep(600)") + f"# killed {confined}"
    caller = f"""
import asyncio
from psrl.activities.user_code.sandbox import Limits, run
asyncio.run(run([{SYSTEM_PYTHON!r}, "-c", {code!r}], confined={confined}, limits=Limits(wall_s=60)))
"""
    parent = subprocess.Popen([sys.executable, "-c", caller], env={**os.environ, "TMPDIR": str(folders)})
    try:
        while len(left_behind(code)) < 2:
            assert parent.poll() is None
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.wait()
    while left_behind(code) or os.listdir(folders):
        time.sleep(0.02)
