"""Which run holds the trainer: one at a time, from its first stage until it is closed or has ended.

A run that ended without closing does not keep the next one out; one that has not ended does, and is named.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ...schemas.errors import InstanceBusy
from ...schemas.ids import RunId
from .backend import TrainerBackend
from .checkpoints import Checkpoints
from .published import Published
from .recovery import Recovery
from .runs import AdmittedRun

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenRun:
    """The run that this process serves."""

    run_id: RunId
    admitted: AdmittedRun
    backend: TrainerBackend
    recovery: Recovery
    checkpoints: Checkpoints
    publisher: Published


class KnownRuns(Protocol):
    def admitted(self, run_id: RunId) -> AdmittedRun:
        """Raises `RunUnknown`."""
        ...

    def ended(self, run_id: RunId) -> bool:
        """True also when nobody knows the run any more."""
        ...


class Tenancy:
    def __init__(self, runs: KnownRuns, open_run: Callable[[RunId, AdmittedRun], OpenRun]) -> None:
        self._runs = runs
        self._open_run = open_run
        self._tenant: OpenRun | None = None

    def enter(self, run_id: RunId) -> OpenRun:
        """The run, opened if it was not. Raises `InstanceBusy` while another run that has not ended holds the trainer,
        and whatever keeps an earlier checkpoint from being completed."""
        tenant = self._tenant
        if tenant is not None and tenant.run_id != run_id:
            if not self._runs.ended(tenant.run_id):
                raise InstanceBusy(f"the trainer serves run {tenant.run_id!r}; run {run_id!r} must wait for its end")
            self.close()
        if self._tenant is None:
            self._tenant = self._open_run(run_id, self._runs.admitted(run_id))
            log.info("run %s: opened", run_id)
        self._tenant.checkpoints.check()
        return self._tenant

    def enter_anew(self, run_id: RunId) -> OpenRun:
        """As the first stage of a run: what is held of a deleted run of the same name is given up."""
        tenant = self._tenant
        if tenant is not None and tenant.run_id == run_id and tenant.admitted != self._runs.admitted(run_id):
            self.close()
        return self.enter(run_id)

    def leave(self, run_id: RunId) -> None:
        """Does nothing when the trainer does not serve this run."""
        if self._tenant is not None and self._tenant.run_id == run_id:
            self.close()
            log.info("run %s: closed", run_id)

    def close(self) -> None:
        """Whoever holds the trainer leaves it, with a checkpoint in progress completed."""
        tenant, self._tenant = self._tenant, None
        if tenant is not None:
            tenant.checkpoints.close()
