"""Synthetic training batches and run configurations for the tests of the trainer."""

import math
import random
from collections.abc import Callable
from typing import Any

import torch

from psrl.activities.training.batch import SampledSequence, TrainBatch
from psrl.schemas.config import RunConfig, parse_config

VOCABULARY = 128


def run_values(**sections: dict[str, Any]) -> dict[str, Any]:
    """A raw configuration with what is required filled in."""
    values: dict[str, dict[str, Any]] = {
        "model": {"path": "model"},
        "data": {"train_files": ["train.jsonl"], "max_prompt_length": 12, "max_response_length": 20},
        "reward": {"function": "builtins:len"},
        "psrl": {"rollout_n": 4, "staleness_buffer_entries": 4},
        "rollout": {"dtype": "float32"},
    }
    for section, keys in sections.items():
        values[section] = {**values.get(section, {}), **keys}
    return values


def run_configuration(**sections: dict[str, Any]) -> RunConfig:
    return parse_config(run_values(**sections))


def synthetic_batch(
    groups: int,
    members: int,
    *,
    seed: int = 0,
    max_prompt: int = 12,
    max_response: int = 20,
    reward: Callable[[random.Random], float | None] = lambda rng: float(rng.random() < 0.5),
    missing_share: float = 0.0,
) -> TrainBatch:
    """Random prompts and responses of random lengths."""
    rng = random.Random(seed)
    sequences = []
    for group in range(groups):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, max_prompt))]
        for _ in range(members):
            response = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, max_response))]
            rollout = [math.nan if rng.random() < missing_share else -5 * rng.random() for _ in response]
            sequences.append(
                SampledSequence(group, len(prompt), torch.tensor(prompt + response), torch.tensor(rollout), reward(rng))
            )
    return TrainBatch(tuple(sequences))
