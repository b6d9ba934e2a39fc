"""Processor seconds per part of a stack: unlike elapsed time they hardly depend on what else the machine does."""

from collections.abc import Mapping

import psutil

Seconds = Mapping[str, float]


def cpu_seconds(parts: Mapping[str, int]) -> Seconds:
    """Of each part since its start, its children (living and ended) included."""
    return {name: _with_children(psutil.Process(pid)) for name, pid in parts.items()}


def spent(before: Seconds, after: Seconds) -> Seconds:
    return {name: after[name] - before[name] for name in before}


def _with_children(process: psutil.Process) -> float:
    total = sum(process.cpu_times()[:4])
    for child in process.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue  # its parent has its time now
    return total
