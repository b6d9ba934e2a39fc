"""Ctrl-C in a command's first moments, and while it puts something in order."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from psrl.workers.cli.interrupts import interruptible

AT_AN_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = {arguments!r}
from psrl.workers.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ["status"]),
        ("psrl.schemas.stack", ["up"]),
        ("psrl.workers.stack.up", ["up"]),
        ("omegaconf", ["train", "run.yaml"]),
    ],
)
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_word(
    module: str, arguments: list[str], tmp_path: Path
) -> None:
    code = AT_AN_IMPORT.format(module=module, arguments=arguments)
    environment = {**os.environ, "PSRL_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_what_an_interrupted_command_puts_in_order_is_not_cut_short_by_more_signals(signum: signal.Signals) -> None:
    done: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signum)
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), signum)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.05)
            done.append("in order")

    before = signal.getsignal(signum)
    with pytest.raises(KeyboardInterrupt):
        interruptible(work())
    assert done == ["in order"]
    assert signal.getsignal(signum) is before


def test_work_that_nobody_interrupts_gives_its_result() -> None:
    async def work() -> int:
        return 3

    assert interruptible(work()) == 3
