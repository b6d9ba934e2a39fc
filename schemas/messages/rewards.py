"""Messages of scoring, and what a user's own functions receive: a reward its sample, a group filter its group."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..errors import UserCodeFailed
from ..ids import GroupId, RunId
from .base import Message, Said

PROMPT_MESSAGES = "prompt messages"
"""Among a row's other columns in the store: its chat messages. No column of people's own is likely to be called so."""


class SampleTurn(BaseModel):
    """One turn of an episode, decoded for reading."""

    model_config = ConfigDict(frozen=True)

    environment: str = ""
    """What the environment, a tool or the user said before the answer, as the chat template renders it. Empty where the
    prompt is all that there was; the first turn of an outside agent has the agent's own prompt here."""
    policy: str
    """The answer."""


class RewardSample(BaseModel):
    """What a reward function sees of one finished trajectory. Of an episode with several branches: the last one that
    has a turn, with what it shares with the branch that it left."""

    model_config = ConfigDict(frozen=True)

    data_source: str
    prompt_text: str
    """The prompt as rendered by the chat template."""
    messages: list[dict[str, Any]] | None = None
    """The prompt's chat messages; None for a prompt that the data have as text."""
    response_text: str
    """All that follows the prompt, the environment's part included, decoded for reading; training never re-tokenises
    it."""
    ground_truth: Any
    """`reward_model.ground_truth` of the data row."""
    extra: dict[str, Any]
    """Every other column of the data row."""
    prompt_ids: list[int]
    response_ids: list[int]
    turns: list[SampleTurn] = []
    """The response once more, turn by turn."""
    outcome_reward: float | None = None
    """What the environment or the agent itself says that the episode is worth; None where it says nothing."""
    outcome_info: dict[str, Any] = {}
    """What else it says."""


class ScoreRequest(Message):
    """Score episodes of one group, each with all its branches. Idempotent: a stored reward is returned, not computed
    again."""

    run_id: RunId
    group_id: GroupId
    indices: tuple[int, ...]
    """Of the episodes, which are those of their first branches."""
    episodes: int
    """N' of the group: branch k of episode e has index e + k * N'."""


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
    """Sampled, in all its branches."""


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
