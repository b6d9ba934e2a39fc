"""The status recorder: what instances reported and how many calls waited, as lines of JSON in the stack's home
(`psrl.status_collection.stats_recorder`). Files and fields have the names that PSRL's tools read.

Promises: a line per instance and interval, as long as the instance reports; nothing is made for a run that is not
recorded; a disk that takes nothing costs the record and never a report.
"""

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...schemas.messages.fleet import FleetInstance
from .now import Now

log = logging.getLogger(__name__)

CONFIG, ROUTING = "stats_config.json", "routing_status.jsonl"
LINES_LATE = 0.05
"""Of its interval, how much too early a line may be: the clock's ticks do not fall on it."""


class Recorder:
    """Writes below `folder`, a folder per run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written_at: dict[Path, float] = {}
        """When each file got its last line."""
        self._failed = False

    @staticmethod
    def wanted(now: Now) -> bool:
        """Whether any run is recorded: most are not, and then nobody has to leave the event loop ten times a second."""
        return any(one.report.run_id and one.report.record_every_s for one in now.instances)

    def record(self, now: Now) -> None:
        """Blocks; not for the event loop."""
        lines: dict[Path, dict[str, Any]] = {}
        every: dict[str, float] = {}
        for one in now.instances:
            if one.report.run_id and one.report.record_every_s:
                every[one.report.run_id] = one.report.record_every_s
                lines[self._file(one.report.run_id, _name(one.report.instance))] = _status(one, now.wall)
        for run_id in every:
            lines[self._file(run_id, ROUTING)] = _routing(now, run_id)
        due = {path: line for path, line in lines.items() if self._due(path, every[path.parent.name], now.clock)}
        try:
            for path, line in due.items():
                self._begin(path.parent, every[path.parent.name], now)
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                self._written_at[path] = now.clock
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("the status of instances is not recorded, trying on: %s", error)
            self._failed = True

    def _file(self, run_id: str, name: str) -> Path:
        return self._folder / run_id / name

    def _due(self, path: Path, every_s: float, clock: float) -> bool:
        last = self._written_at.get(path)
        return last is None or clock - last >= every_s * (1 - LINES_LATE)

    def _begin(self, folder: Path, every_s: float, now: Now) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config, method = folder / CONFIG, now.methods.get(folder.name)
        # Instances report before anything is routed, and only requests say how that is done.
        if method is not None and not config.exists():
            told = {"routing_strategy": method, "interval_in_s": every_s, "started_at": now.wall}
            config.write_text(json.dumps(told) + "\n")


def _status(one: FleetInstance, wall: float) -> dict[str, Any]:
    report = one.report
    return {
        "ts": wall,
        "model_version": report.version,
        "num_running_reqs": report.running,
        "num_waiting_reqs": report.waiting,
        "kv_cache_usage": report.kv_cache_usage,
        "generation_throughput": report.throughput,
        "avg_ttft": report.ttft_s,
        "avg_itl": report.itl_s,
    }


def _routing(now: Now, run_id: str) -> dict[str, Any]:
    waiting: Mapping[int, int] = {tag: count for run, tag, count in now.waiting if run == run_id}
    return {
        "ts": now.wall,
        "queue_len": sum(waiting.values()),
        "pending_request_num": sum(waiting.values()),
        "running_request_num": sum(one.load for one in now.instances if one.report.run_id == run_id),
        "partition_lengths": {str(tag): waiting[tag] for tag in sorted(waiting)},
    }


def _name(instance: str) -> str:
    return f"stats_{re.sub(r'[^A-Za-z0-9_-]', '_', instance)}_dp0.jsonl"
