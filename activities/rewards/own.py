"""Scores that need no reward function: those of runs whose environments or agents say themselves what an episode is
worth, and those of episodes of which there is nothing to score.

Promise: an episode that says nothing has failed; it is not 0.0 (L10).
"""

from ...schemas.errors import UserCodeFailed
from ...schemas.messages.rewards import Score, ScoreOutcome
from .reading import SCORE, reading
from .samples import Scorable


def unfit(item: Scorable) -> Score | None:
    """The score of an episode that no function is asked about."""
    if item.outcome is not None and not item.outcome.ended.success:
        return _failed(item, f"the episode ended as {item.outcome.ended}")
    if not item.turns:
        return _failed(item, "the episode has no turn that ended")
    return None


def own_score(item: Scorable, needed: str | None) -> Score:
    """What the episode's outcome says; the numbers of its `info` are metrics. `needed`: one that must be there."""
    if item.outcome is None or item.outcome.reward is None:
        return _failed(item, "the environment or the agent gave no reward, and reward.function is empty")
    try:
        found = reading({**item.outcome.info, SCORE: item.outcome.reward}, needed)
    except UserCodeFailed as failure:
        return _failed(item, f"the episode's outcome {failure}")
    return Score(index=item.index, outcome=ScoreOutcome.SCORED, reward=found.reward, metrics=found.metrics)


def _failed(item: Scorable, why: str) -> Score:
    return Score(index=item.index, outcome=ScoreOutcome.FAILED, error=why)
