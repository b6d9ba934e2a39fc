"""`trainer.*`: length of the run, checkpoints, validation."""

from enum import StrEnum

from pydantic import Field

from .base import Section


class ModelEngine(StrEnum):
    """The library that trains."""

    DP = "dp"
    """PyTorch, data parallel."""


class TrainerSection(Section):
    project_name: str = "psrl"
    """Shown in reports."""
    total_epochs: int = Field(default=30, ge=1)
    """Epochs over the training data; the run ends with whichever of this and total_training_steps comes first. Batches
    continue across the end of an epoch; prompts that would not fill the run's last batch are not drawn."""
    total_training_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps; null derives it from total_epochs."""
    save_freq: int = Field(default=-1, ge=-1)
    """Steps between checkpoints; the end of the run always has one. -1: only the end."""
    test_freq: int = Field(default=-1, ge=-1)
    """Steps between validations; one always follows the last step. -1: only that one (and the one before the first
    step, see val_before_train)."""
    val_before_train: bool = True
    """Validate version 0 when validation files are given."""
    max_ckpt_to_keep: int = Field(default=2, ge=1)
    """Newest checkpoints kept."""
    gap_sample: int = Field(default=16, ge=0)
    """Trajectories per older version that are scored again with that version's weights, each step, to measure engine
    against trainer. 0 measures only tokens of the current version (no extra weights are read)."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the trainer and of every sampling seed."""
