"""Wires the parts of a trainer process: the stages, and all that an opened run needs."""

from functools import partial

from sqlalchemy import Engine

from ...schemas.ids import RunId
from ...schemas.stack import Stack
from .backend import BackendRun
from .backends import Backends
from .batches import read_batch
from .checkpoint_rows import StoredCheckpointRows
from .checkpoints import Checkpoints
from .publisher import Publisher
from .recovery import Recovery
from .runs import AdmittedRun, StoredRuns
from .stages import Stages
from .tenancy import OpenRun, Tenancy


def trainer_stages(stack: Stack, store: Engine, backends: Backends) -> Stages:
    return Stages(Tenancy(StoredRuns(store), partial(_open, stack, store, backends)))


def _open(stack: Stack, store: Engine, backends: Backends, run_id: RunId, admitted: AdmittedRun) -> OpenRun:
    config = admitted.config
    publisher = Publisher(store, stack.weights_dir, run_id, config)
    checkpoints = Checkpoints(StoredCheckpointRows(store, run_id), stack.checkpoints_dir, run_id, admitted)
    reading = partial(read_batch, store, run_id, config.psrl.offered_trajectories)
    backend = backends[config.model_engine](BackendRun(run_id, config, reading, publisher))
    recovery = Recovery(run_id, backend, checkpoints, publisher)
    return OpenRun(run_id, admitted, backend, recovery, checkpoints, publisher)
