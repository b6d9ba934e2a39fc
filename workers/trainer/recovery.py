"""Brings a run's state to the version that a stage needs, and hands out the step that belongs to it.

- At version `buffer`: the stage works on it, after what comes before it.
- At version `buffer + 1` with this buffer's step in memory: the step remembers its results.
- Anything else, or no state at all (a restarted process, a failed update): the newest complete checkpoint that is old
  enough, or the initial model, is loaded, and the stored batches are replayed up to version `buffer`.

A replay is the same computations on the same rows. It publishes nothing and saves nothing; the version it ends at is
compared with the published one.
"""

import logging
from pathlib import Path
from typing import NamedTuple, Protocol

from ...schemas.ids import RunId
from .agreement import probe_gap
from .backend import BackendStep, PublishedVersions, TrainerBackend

log = logging.getLogger(__name__)


class Found(NamedTuple):
    """The newest complete checkpoint that is old enough."""

    folder: Path | None
    version: int
    notes: tuple[str, ...]
    """Which newer ones were passed over, and why."""


class SavedVersions(Protocol):
    def newest(self, up_to: int) -> Found: ...


class Recovery:
    def __init__(
        self, run_id: RunId, backend: TrainerBackend, saved: SavedVersions, published: PublishedVersions
    ) -> None:
        self.notes: tuple[str, ...] = ()
        """What was noteworthy when the state was last rebuilt; told with the version that is published next."""
        self._run_id = run_id
        self._backend = backend
        self._saved = saved
        self._published = published
        self._step: BackendStep | None = None

    def step(self, buffer: int) -> BackendStep:
        """With the state before, or just after, its update."""
        step = self._step
        if step is not None and step.buffer == buffer and self._backend.version == step.version:
            return step
        if step is not None and step.buffer != buffer:
            self.notes = ()  # Told with the step before.
        self.at(buffer)
        self._step = self._backend.step(buffer)
        return self._step

    def after(self, buffer: int) -> None:
        """The state is at version `buffer + 1` when this returns."""
        if self._backend.version != buffer + 1:
            self.step(buffer).update()

    def at(self, version: int) -> None:
        """The state is at `version` when this returns: rebuilt, unless it was there."""
        if self._backend.version == version:
            return
        self._step = None
        found = self._saved.newest(version)
        self.notes = found.notes
        if found.folder is None:
            self._backend.start()
        else:
            self._backend.restore(found.folder, found.version)
            log.info("loaded %s", found.folder)
        if found.version < version:
            log.info("run %s: replaying batches %d to %d", self._run_id, found.version, version - 1)
        for buffer in range(found.version, version):
            self._backend.step(buffer).update()
        self.compare(version)

    def compare(self, version: int) -> None:
        """A rebuilt version should be the published one; another processor may round differently, and that is said."""
        gap = probe_gap(self._published.probe(version), self._backend.probe())
        if gap:
            log.warning(
                "run %s: rebuilt version %d differs from the published one by up to %.3g in log-probs of the probe "
                "(other hardware or libraries?); engines keep the published one",
                self._run_id,
                version,
                gap,
            )
