"""The rule reward of the arithmetic example: `examples.arithmetic.reward:exact_sum` in a run's configuration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psrl.schemas.messages.rewards import RewardSample

# `int()` would also accept "+7", "1_0" and digits of other scripts; the model has to write plain digits.
PLAIN_NUMBER = re.compile(r"0|[1-9][0-9]*")


def exact_sum(sample: RewardSample) -> float:
    """1.0 when the answer is the right number and nothing else (outer whitespace is ignored), else 0.0.

    A ground truth that is no number is a fault of the data, not of the answer: it raises, so that the
    trajectory fails instead of teaching the model that it was wrong.
    """
    expected = str(sample.ground_truth).strip()
    if not PLAIN_NUMBER.fullmatch(expected):
        raise ValueError(f"{sample.data_source}: ground_truth={sample.ground_truth!r}, allowed is a plain number")
    return float(sample.response_text.strip() == expected)
