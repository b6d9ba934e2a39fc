"""Processes that an earlier stack left behind (its supervisor was killed): found by the mark in their environment."""

import os
import signal
from pathlib import Path

import psutil

from ...schemas.environment import HOME_VARIABLE, PART_VARIABLE
from .parts import POSTGRES

TERM_WAIT_S = 5.0


def stack_processes(home: Path) -> list[psutil.Process]:
    """Every live process of the stack under `home`, except this one and those it runs in."""
    mine = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        if process.pid in mine:
            continue
        try:
            values = process.environ()
            if values.get(HOME_VARIABLE) == str(home) and PART_VARIABLE in values and _alive(process):
                found.append(process)
        except psutil.Error:
            continue  # gone meanwhile, or another user's
    return found


def end_processes(home: Path) -> int:
    """Ask all of them to end, kill those that do not; how many there were."""
    left = stack_processes(home)
    for process in left:
        _signal(process, _gentle(process))
    _, stubborn = psutil.wait_procs(left, timeout=TERM_WAIT_S)
    for process in stubborn:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(stubborn, timeout=TERM_WAIT_S)
    return len(left)


def _alive(process: psutil.Process) -> bool:
    return bool(process.status() != psutil.STATUS_ZOMBIE)


def _gentle(process: psutil.Process) -> signal.Signals:
    """PostgreSQL takes SIGTERM as "wait for every client"; SIGINT ends it cleanly at once."""
    try:
        return signal.SIGINT if process.environ().get(PART_VARIABLE) == POSTGRES else signal.SIGTERM
    except psutil.Error:
        return signal.SIGTERM


def _signal(process: psutil.Process, signum: signal.Signals) -> None:
    try:
        process.send_signal(signum)
    except psutil.Error:
        return  # gone meanwhile
