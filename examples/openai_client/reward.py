"""The reward of the client's sums: `examples.openai_client.reward:last_answer` in a run's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psrl.schemas.messages.rewards import RewardSample


def last_answer(sample: RewardSample) -> float:
    """1.0 when what follows the last `=` of the conversation is the right number and nothing else, else 0.0."""
    return float(sample.response_text.rpartition("=")[2].strip() == str(sample.ground_truth))
