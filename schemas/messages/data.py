"""Messages of the data activities: admitting a run and drawing prompts."""

from enum import StrEnum
from typing import Any

from ..ids import GroupId, RunId
from .base import Message


class Purpose(StrEnum):
    """What a group is for."""

    TRAIN = "train"
    """Trained on."""
    VALIDATION = "validation"
    """Measured only."""
    OUTSIDE = "outside"
    """A session that somebody opened at the gateway: played and recorded, for no batch."""


class AdmitRequest(Message):
    """Check a run against the files and parts it names, then create its row. Idempotent per workflow run."""

    run_id: RunId
    config: dict[str, Any]
    workflow_run_id: str
    """The first execution's id: a retry of the same admission is recognised, another run of this name refused."""


class Admission(Message):
    """What the workflow needs to know of the admitted run."""

    config: dict[str, Any]
    """The effective configuration, every default written out."""
    total_steps: int
    prompts: int
    """Usable training prompts per epoch."""
    skipped_too_long: int
    """Training prompts longer than data.max_prompt_length, per epoch."""
    validation_prompts: int
    data_fingerprint: str
    notes: tuple[str, ...] = ()
    """What people should know of their data although the run was admitted."""


class RestoreRequest(Message):
    """Find out from the store where an ended run can be resumed. Reads only."""

    run_id: RunId
    accept_changed_data: bool = False
    """Resume although the data files differ from those the run was admitted with: a new epoch begins with them."""


class KeptGroup(Message):
    """A group that was complete and scored when the run ended: nothing of it is generated again."""

    group_id: GroupId
    version_tag: int


class Restored(Message):
    """Where an ended run is resumed: what was *trained on* decides, not what was drawn (L12)."""

    admission: Admission
    version: int
    """Steps that were finished and recorded."""
    batch: tuple[GroupId, ...] = ()
    """Groups of a batch that was recorded, but whose step was not: it is trained first. Empty: there is none."""
    kept: tuple[KeptGroup, ...] = ()
    """In order of completion."""
    unfinished: tuple[GroupId, ...] = ()
    """Groups that the run left behind half done: they are given up, their prompts are drawn again."""
    redraw: tuple[int, ...] = ()
    """Places whose group was given up by a stop or a failure of the run, in order."""
    next_place: int = 0
    next_group: int = 0
    first_epoch: int | None = None
    """Given when changed data were accepted: the epoch that begins with them."""
    dropped: dict[str, int] = {}
    """Groups that left without being trained on, by reason."""
    reward_mean: float | None = None


class ReopenRun(Message):
    """Record that an ended run is resumed, with what it was admitted with or with changed data that were accepted."""

    run_id: RunId
    admission: Admission
    first_epoch: int | None = None
    """Given when changed data were accepted."""
    workflow_run_id: str = ""
    """The execution that takes the run up: what worker processes keep of it in memory is of the one before, for example
    a reward function that was repaired meanwhile."""


class DrawRequest(Message):
    """Write the next groups of the training data to the store. Idempotent by group id."""

    run_id: RunId
    first: int
    """Number of the first group."""
    tags: tuple[int, ...]
    """Version tag of each group, in order; its length is how many groups are drawn."""
    places: tuple[int, ...]
    """Place of each group in the data: place p is prompt `p mod prompts` of epoch `p div prompts`."""
    trajectories: int
    """Trajectory rows per group (N')."""


class DrawResult(Message):
    groups: tuple[GroupId, ...]


class DrawValidationRequest(Message):
    """Write the validation groups of one round to the store. Idempotent."""

    run_id: RunId
    version: int
    trajectories: int
