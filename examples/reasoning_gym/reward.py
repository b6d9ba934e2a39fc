"""The reward of the reasoning-gym example: `examples.reasoning_gym.reward:score` in a run's configuration.

The library is imported with this file, so that a run without it is refused at its start.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import reasoning_gym

from .answer import find_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from psrl.schemas.messages.rewards import RewardSample


@lru_cache(maxsize=128)
def scorer(task: str) -> Callable[[str | None, dict[str, Any]], float]:
    """The library's own `score_answer` of a task. Raises ValueError for a task it does not know."""
    return reasoning_gym.get_score_answer_fn(task)  # type: ignore[no-any-return]


def score(sample: RewardSample) -> float:
    """What the task's own scorer gives for the answer found in the reply: 1.0 when right. `chain_sum` also gives a
    part of it when the right digits stand inside a wrong number.

    A row without the library's entry is a fault of the data, not of the answer: it raises, so that the trajectory
    fails instead of teaching the model that it was wrong.
    """
    entry = (sample.extra.get("extra_info") or {}).get("entry")
    if not isinstance(entry, dict) or "answer" not in entry or "source_dataset" not in entry.get("metadata", {}):
        raise ValueError(f"{sample.data_source}: extra_info.entry must be the library's entry, not {entry!r}")
    if entry["answer"] != sample.ground_truth:
        raise ValueError(
            f"{sample.data_source}: ground_truth={sample.ground_truth!r} is not the entry's answer {entry['answer']!r}"
        )
    return float(scorer(entry["metadata"]["source_dataset"])(find_answer(sample.response_text), entry))
