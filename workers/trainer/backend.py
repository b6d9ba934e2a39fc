"""What the trainer needs of a training library: one run's model and optimizer, on one or many ranks.

Chosen by `model_engine` (`backends.py`). Everything that decides (`stages.py`, `tenancy.py`, `recovery.py`,
`checkpoints.py`, `publisher.py`) knows a backend by this page only and loads no tensor library; a test holds that.

Promises of every backend: what it computes is a function of the configuration and the stored batches, so that a replay
on the same hardware repeats every bit; an update that fails leaves no state, because weights between two versions
belong to none; a snapshot does not change any more.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...activities.weights.transport import Lease
from ...schemas.config import RunConfig
from ...schemas.ids import RunId
from ...schemas.messages.training import AdvantageStats, LogProbStats, UpdateStats
from ...schemas.weights import WeightProbe

if TYPE_CHECKING:
    import torch

    from ...activities.training.batch import TrainBatch


class Snapshot(Protocol):
    """The state as it was at one version, in host memory: written while training continues."""

    @property
    def version(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """About what `write` needs on disk."""
        ...

    def write(self, folder: Path) -> None:
        """Into an empty folder: all that `TrainerBackend.restore` reads. May be called again after it failed."""
        ...


class BackendStep(Protocol):
    """The computations of one buffer's step. Each is made once, after those it builds on, and remembered."""

    @property
    def buffer(self) -> int: ...

    @property
    def version(self) -> int:
        """Of the state that belongs to it: `buffer`, and `buffer + 1` once it is updated."""
        ...

    def log_probs(self) -> LogProbStats:
        """Old log-probs, measured against those of the engine. A replay does not measure."""
        ...

    def advantages(self) -> AdvantageStats: ...

    def update(self) -> UpdateStats:
        """The state then is one version newer."""
        ...


class TrainerBackend(Protocol):
    """Methods are called from one thread, on rank 0."""

    @property
    def version(self) -> int | None:
        """Of the state that is held; null when there is none."""
        ...

    def start(self) -> None:
        """Hold version 0: the model of `model.path`. Raises `ModelError` when it is not, or no longer, what the run
        began with; no state is held then."""
        ...

    def restore(self, folder: Path, version: int) -> None:
        """Hold what a snapshot of that version wrote. Raises `ModelError`, as `start` does."""
        ...

    def step(self, buffer: int) -> BackendStep:
        """On the batch of that buffer; its version is held. Raises `InvariantViolated` when the batch is not there."""
        ...

    def probe(self) -> WeightProbe:
        """Of the version that is held."""
        ...

    def export(self) -> "Mapping[str, torch.Tensor]":
        """The tensors that engines load, in their number format, on the host, by their names in plain checkpoints."""
        ...

    def snapshot(self) -> Snapshot: ...


class PublishedVersions(Protocol):
    """What a backend may ask of the versions of its run."""

    def probe(self, version: int) -> WeightProbe | None:
        """Null when it is not published."""
        ...

    def lease(self, version: int) -> Lease:
        """Raises `WeightsRefused` when it is not kept whole."""
        ...


class BackendRun(NamedTuple):
    """The run a backend is opened for."""

    run_id: RunId
    config: RunConfig
    read_batch: "Callable[[int], TrainBatch]"
    published: PublishedVersions


OpenBackend = Callable[[BackendRun], TrainerBackend]
