"""Messages of scoring, and the sample that a user's reward function receives."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..ids import GroupId, RunId
from .base import Message


class RewardSample(BaseModel):
    """What a reward function sees of one finished trajectory."""

    model_config = ConfigDict(frozen=True)

    data_source: str
    prompt_text: str
    """The prompt as rendered by the chat template."""
    response_text: str
    """The sampled ids decoded for reading; training never re-tokenises it."""
    ground_truth: Any
    """`reward_model.ground_truth` of the data row."""
    extra: dict[str, Any]
    """Every other column of the data row."""
    prompt_ids: list[int]
    response_ids: list[int]


class ScoreRequest(Message):
    """Score trajectories of one group. Idempotent: a stored reward is returned, not computed again."""

    run_id: RunId
    group_id: GroupId
    indices: tuple[int, ...]


class ScoreOutcome(StrEnum):
    """What became of one reward."""

    SCORED = "scored"
    """The function returned a number."""
    FAILED = "failed"
    """It raised, timed out or returned no number, on every attempt. The trajectory fails; it is not 0.0."""


class Score(Message):
    index: int
    outcome: ScoreOutcome
    reward: float | None = None
    metrics: dict[str, float] = {}
    """Numbers that the function returned beside the reward, by name."""
    error: str = ""
    """First line of the last failure, shortened."""


class ScoreResult(Message):
    scores: tuple[Score, ...]
