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


class DrawRequest(Message):
    """Write the next groups of the training data to the store. Idempotent by group id."""

    run_id: RunId
    first: int
    """Number of the first group; group n is prompt `n mod prompts` of epoch `n div prompts`."""
    tags: tuple[int, ...]
    """Version tag of each group, in order; its length is how many groups are drawn."""
    trajectories: int
    """Trajectory rows per group (N')."""


class DrawResult(Message):
    groups: tuple[GroupId, ...]


class DrawValidationRequest(Message):
    """Write the validation groups of one round to the store. Idempotent."""

    run_id: RunId
    version: int
    trajectories: int
