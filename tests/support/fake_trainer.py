"""A trainer without torch and without a store: the decisions of the real one around a backend of plain numbers.

`Disk` is what outlives a process: batches, published versions, rows, checkpoints. `Disk.process()` is a new process on
it. A state is a chain of digests: two are equal only if the same batches were trained in the same order.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psrl.activities.weights.transport import Lease
from psrl.schemas.config import RunConfig
from psrl.schemas.errors import ModelError, RunUnknown, WeightsRefused
from psrl.schemas.ids import RunId
from psrl.schemas.messages.training import AdvantageStats, DataPosition, LogProbStats, PublishResult, UpdateStats
from psrl.schemas.weights import WeightProbe
from psrl.workers.trainer.agreement import SAME_MODEL_TOLERANCE, probe_gap
from psrl.workers.trainer.backend import PublishedVersions
from psrl.workers.trainer.checkpoints import Checkpoints
from psrl.workers.trainer.published import Export
from psrl.workers.trainer.recovery import Recovery
from psrl.workers.trainer.runs import AdmittedRun
from psrl.workers.trainer.stages import Stages
from psrl.workers.trainer.tenancy import OpenRun, Tenancy

Reached = Callable[[str], None]
"""Called at every named point of the work; raises where a test wants a fault."""


def state_of(run_id: str, version: int) -> str:
    """Of `run_id` after its batches below `version`, as it must be, whatever happened on the way."""
    state = _chained("model", run_id)
    for buffer in range(version):
        state = _chained(state, f"batch {buffer} of {run_id}")
    return state


def probe_of(state: str) -> WeightProbe:
    return WeightProbe(token_ids=(1, 2), logprobs=(-int(state[:8], 16) / 2**32,))


def _chained(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class FakeSnapshot:
    version: int
    state: str
    reached: Reached
    nbytes: int = 100

    def write(self, folder: Path) -> None:
        (folder / "weights").write_text(self.state)
        self.reached("amid a snapshot")
        (folder / "state.json").write_text(json.dumps({"version": self.version, "state": self.state}))


@dataclass
class FakeBackend:
    run_id: RunId
    published: PublishedVersions
    reached: Reached
    state: tuple[int, str] | None = None

    @property
    def version(self) -> int | None:
        return None if self.state is None else self.state[0]

    def held(self) -> tuple[int, str]:
        assert self.state is not None, "asked for a state that is not held"
        return self.state

    def start(self) -> None:
        self.state = None
        self.reached("start")
        initial = state_of(self.run_id, 0)
        if (probe_gap(self.published.probe(0), probe_of(initial)) or 0) > SAME_MODEL_TOLERANCE:
            raise ModelError("not the model that the run began with")
        self.state = (0, initial)

    def restore(self, folder: Path, version: int) -> None:
        self.state = None
        self.reached("restore")
        stored = json.loads((folder / "state.json").read_text())
        assert (stored["version"], (folder / "weights").read_text()) == (version, stored["state"])
        self.state = (version, stored["state"])

    def step(self, buffer: int) -> "FakeStep":
        assert self.version == buffer, f"batch {buffer} on version {self.version}"
        return FakeStep(self, buffer)

    def probe(self) -> WeightProbe:
        return probe_of(self.held()[1])

    def export(self) -> Mapping[str, Any]:
        self.reached("export")
        return {"state": self.held()[1]}

    def snapshot(self) -> FakeSnapshot:
        return FakeSnapshot(*self.held(), self.reached)


@dataclass
class FakeStep:
    backend: FakeBackend
    buffer: int
    updated: UpdateStats | None = None
    scored: LogProbStats | None = None

    @property
    def version(self) -> int:
        return self.buffer if self.updated is None else self.buffer + 1

    def log_probs(self) -> LogProbStats:
        if self.scored is None:
            assert self.backend.version == self.buffer
            self.backend.reached("log-probs")
            numbers = {"gap_mean_abs": 0.0, "gap_max_abs": 0.0, "gap_k3": 0.0, "seconds": 0.0}
            self.scored = LogProbStats(tokens=self.buffer + 1, untrainable_tokens=0, **numbers)
        return self.scored

    def advantages(self) -> AdvantageStats:
        self.backend.reached("advantages")
        return AdvantageStats(mean=float(self.buffer), std=1.0, zero_share=0.0)

    def update(self) -> UpdateStats:
        if self.updated is None:
            self.log_probs()
            (version, state), self.backend.state = self.backend.held(), None
            self.backend.reached("amid an update")
            self.backend.state = (version + 1, _chained(state, f"batch {self.buffer} of {self.backend.run_id}"))
            names = set(UpdateStats.model_fields) - {"loss", "optimizer_steps"}
            loss = probe_of(state).logprobs[0]
            self.updated = UpdateStats(loss=loss, optimizer_steps=1, **dict.fromkeys(names, 0.0))
        return self.updated


@dataclass
class FakePublished:
    """Versions that are rows at once, and bytes that may be damaged."""

    reached: Reached = lambda point: None
    versions: dict[int, str] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)

    def published(self, version: int) -> PublishResult | None:
        known = version in self.versions
        return PublishResult(version=version, bytes=1, seconds=0.0) if known else None

    def publish(self, version: int, export: Export, probe: WeightProbe) -> PublishResult:
        state: Any = export()["state"]
        assert probe == probe_of(state)
        assert self.versions.setdefault(version, state) == state, "L9"
        self.reached("after the row of a version")
        return PublishResult(version=version, bytes=1, seconds=0.0)

    def newest(self) -> int | None:
        return max(self.versions, default=None)

    def probe(self, version: int) -> WeightProbe | None:
        return probe_of(self.versions[version]) if version in self.versions else None

    def lease(self, version: int) -> Lease:
        raise WeightsRefused(f"version {version} is not kept")

    def damage(self, version: int) -> str:
        return f"version {version} is damaged" if version in self.damaged else ""

    def repair(self, version: int, export: Export, probe: WeightProbe) -> None:
        state: Any = export()["state"]
        assert self.versions[version] == state
        self.damaged.discard(version)


@dataclass
class FakeRows:
    run_id: RunId
    paths: dict[int, Path] = field(default_factory=dict)

    def position(self, version: int) -> DataPosition:
        numbers = dict.fromkeys(set(DataPosition.model_fields) - {"data_fingerprint", "trained_ahead", "left"}, 0)
        known = {"run_id": self.run_id, "version": version, "data_fingerprint": "", "trained_ahead": (), "left": {}}
        return DataPosition(**{**numbers, **known})  # type: ignore[arg-type]

    def add(self, version: int, path: Path) -> None:
        self.paths[version] = path

    def remove(self, versions: list[int]) -> None:
        for version in versions:
            self.paths.pop(version, None)


class Disk:
    """What outlives a process."""

    def __init__(self, root: Path, config: RunConfig, runs: tuple[str, ...] = ("run",)) -> None:
        self.root = root
        self.config = config
        self.executions = {RunId(run): f"execution-of-{run}" for run in runs}
        self.over: set[str] = set()
        self.published = {RunId(run): FakePublished() for run in runs}
        self.rows = {RunId(run): FakeRows(RunId(run)) for run in runs}

    def admitted(self, run_id: RunId) -> AdmittedRun:
        if run_id not in self.executions:
            raise RunUnknown(run_id)
        return AdmittedRun(self.executions[run_id], self.config)

    def ended(self, run_id: RunId) -> bool:
        return run_id in self.over

    def folder(self, run_id: str, version: int) -> Path:
        return self.root / run_id / f"step_{version:06d}"

    def process(self, reached: Reached = lambda point: None) -> Stages:
        """A new one: nothing in memory."""

        def open_run(run_id: RunId, admitted: AdmittedRun) -> OpenRun:
            published = self.published[run_id]
            published.reached = reached
            checkpoints = Checkpoints(self.rows[run_id], self.root, run_id, admitted)
            backend = FakeBackend(run_id, published, reached)
            recovery = Recovery(run_id, backend, checkpoints, published)
            return OpenRun(run_id, admitted, backend, recovery, checkpoints, published)

        return Stages(Tenancy(self, open_run))
