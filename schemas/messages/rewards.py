"""Messages of scoring, and what a user's own functions receive: a reward its sample, a group filter its group."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..errors import UserCodeFailed
from ..ids import GroupId, RunId
from .base import Message, Said

PROMPT_MESSAGES = "prompt messages"
"""Among a row's other columns in the store: its chat messages. No column of people's own is likely to be called so."""


class RewardSample(BaseModel):
    """What a reward function sees of one finished trajectory."""

    model_config = ConfigDict(frozen=True)

    data_source: str
    prompt_text: str
    """The prompt as rendered by the chat template."""
    messages: list[dict[str, Any]] | None = None
    """The prompt's chat messages; None for a prompt that the data have as text."""
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
    """Numbers that the function returned beside the reward, by name. They go into the store and stay there: no workflow
    decides by them."""
    error: Said = ""
    """First line of the last failure, shortened."""


class Verdict(StrEnum):
    """What a group filter says of a complete group."""

    KEEP = "keep"
    """It may be trained on."""
    DROP = "drop"
    """It is left out; one fresh prompt replaces it."""
    FAILED = "failed"
    """The filter itself failed: nobody knows. The group fails."""


class GroupVerdict(Message):
    verdict: Verdict
    reason: Said = ""
    """In one line; empty for a group that is kept."""


class ScoreResult(Message):
    scores: tuple[Score, ...]
    verdict: GroupVerdict | None = None
    """When the group is complete and its run filters groups. Of several calls for one group, at least the one that
    stored the last score that counts has it."""


class ScoredTrajectory(BaseModel):
    """One member of a complete group."""

    model_config = ConfigDict(frozen=True)

    index: int
    reward: float
    metrics: dict[str, float] = {}
    """What the reward returned beside `score`."""
    tokens: int = 0
    """Sampled."""


class ScoredGroup(BaseModel):
    """What a group filter sees: the N trajectories that the group would be trained on."""

    model_config = ConfigDict(frozen=True)

    group_id: GroupId
    data_source: str = ""
    ground_truth: Any = None
    """`reward_model.ground_truth` of the data row."""
    extra: dict[str, Any] = {}
    """Every other column of the data row."""
    trajectories: tuple[ScoredTrajectory, ...]

    @property
    def rewards(self) -> list[float]:
        return [trajectory.reward for trajectory in self.trajectories]

    def values(self, metric: str) -> list[float]:
        """One per trajectory. Raises `UserCodeFailed` when the reward did not return it for all of them."""
        for trajectory in self.trajectories:
            if metric not in trajectory.metrics:
                there = ", ".join(["score", *trajectory.metrics])
                raise UserCodeFailed(f"the reward of t{trajectory.index:02d} has no number {metric!r}, only {there}")
        return [trajectory.metrics[metric] for trajectory in self.trajectories]
