"""The stages of a step, each idempotent by (run, buffer). Called from one thread only (`host.py`).

A stage enters the run (`tenancy.py`), has the state brought to where its buffer needs it (`recovery.py`), and does its
work in the backend. A checkpoint is written beside the stages that follow it (`checkpoints.py`). One that could not be
written is written again by the next stage, whatever that is: it fails with the reason, and works when it is repeated
after the reason is gone.
"""

import logging

from ...schemas.ids import RunId
from ...schemas.messages.training import (
    AdvantageStats,
    CheckpointResult,
    LogProbStats,
    PublishResult,
    UpdateStats,
)
from .tenancy import Tenancy

log = logging.getLogger(__name__)


class Stages:
    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy

    def open(self, run_id: RunId) -> PublishResult:
        """Publish version 0, unless it is published already; then see that the newest version is whole on the disk,
        and write it again if it is not: instances are about to pull it."""
        run = self._tenancy.enter_anew(run_id)
        published = run.publisher.published(0)
        if published is None:
            run.recovery.at(0)
            return run.publisher.publish(0, run.backend.export, run.backend.probe())
        newest = run.publisher.newest()
        damage = "" if newest is None else run.publisher.damage(newest)
        if newest is None or not damage:
            return published
        log.warning("%s; it is rebuilt", damage)
        run.recovery.at(newest)
        run.publisher.repair(newest, run.backend.export, run.backend.probe())
        return published.model_copy(update={"notes": (*published.notes, f"rebuilt: {damage}")})

    def log_probs(self, run_id: RunId, buffer: int) -> LogProbStats:
        return self._tenancy.enter(run_id).recovery.step(buffer).log_probs()

    def advantages(self, run_id: RunId, buffer: int) -> AdvantageStats:
        return self._tenancy.enter(run_id).recovery.step(buffer).advantages()

    def update(self, run_id: RunId, buffer: int) -> UpdateStats:
        return self._tenancy.enter(run_id).recovery.step(buffer).update()

    def publish(self, run_id: RunId, buffer: int) -> PublishResult:
        """Version `buffer + 1`. The state is brought there in any case: the next step starts from it."""
        run, version = self._tenancy.enter(run_id), buffer + 1
        run.recovery.after(buffer)
        published = run.publisher.published(version)
        if published is None:
            published = run.publisher.publish(version, run.backend.export, run.backend.probe())
        else:
            run.recovery.compare(version)
        return published.model_copy(update={"notes": run.recovery.notes})

    def checkpoint(self, run_id: RunId, buffer: int, wait: bool = False) -> CheckpointResult:
        """With `wait` it is complete on disk, else its state is copied and it is being written."""
        run = self._tenancy.enter(run_id)
        stored = run.checkpoints.find(buffer + 1, wait)
        if stored is not None:
            return stored
        run.recovery.after(buffer)
        return run.checkpoints.save(run.backend.snapshot, wait)

    def close(self, run_id: RunId) -> None:
        self._tenancy.leave(run_id)

    def shutdown(self) -> None:
        """The process ends in order: a checkpoint in progress is completed."""
        self._tenancy.close()
