"""Synthetic training batches and run configurations for the tests of the trainer."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import torch
from sqlalchemy import Engine, insert

from psrl.activities.store.codec import encode_ids, encode_logprobs
from psrl.activities.training.batch import SampledSequence, TrainBatch
from psrl.schemas.config import RunConfig, parse_config
from psrl.schemas.ids import training_group
from psrl.schemas.tables import Batch, BatchMember, Group, Run, Segment, Trajectory, Turn

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
    environment_share: float = 0.0,
) -> TrainBatch:
    """Random prompts and responses of random lengths."""
    rng = random.Random(seed)
    sequences = []
    for group in range(groups):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, max_prompt))]
        for member in range(members):
            response = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, max_response))]
            rollout = [math.nan if rng.random() < missing_share else -5 * rng.random() for _ in response]
            sampled = [not environment_share or rng.random() >= environment_share for _ in response]
            rollout = [value if own else math.nan for value, own in zip(rollout, sampled, strict=True)]
            sequences.append(
                SampledSequence(
                    group,
                    member,
                    len(prompt),
                    torch.tensor(prompt + response),
                    torch.tensor(rollout),
                    reward(rng),
                    torch.zeros(len(response), dtype=torch.int32),
                    torch.tensor(sampled),
                )
            )
    return TrainBatch(tuple(sequences))


def fill_run(store: Engine, run_id: str, values: dict[str, Any], batches: Sequence[TrainBatch]) -> None:
    """A run in the store as the rest of the system would leave it: buffer b holds `batches[b]`. Every trajectory has
    two segments where it is long enough, inserted last first."""
    now = datetime.now(UTC)
    segment = {"run_id": run_id, "turn": 0, "fence": 1, "instance": "rollout-0", "started_at": now, "finished_at": now}
    numbers = count()
    with store.begin() as connection:
        connection.execute(insert(Run), [_run_row(run_id, values, len(batches))])
        for buffer, batch in enumerate(batches):
            connection.execute(insert(Batch), [{"run_id": run_id, "buffer": buffer, "info": {}}])
            ids = [training_group(next(numbers)) for _ in range(batch.groups)]
            first = {s.group: s for s in batch.sequences}
            connection.execute(
                insert(Group), [_group_row(run_id, ids[group], buffer, sequence) for group, sequence in first.items()]
            )
            trajectories, turns, segments, members = [], [], [], []
            for sequence, index in zip(batch.sequences, _indices(batch), strict=True):
                key = {"run_id": run_id, "group_id": ids[sequence.group], "index": index}
                status = "failed" if sequence.reward is None else "scored"
                tokens = sequence.rollout.numel()
                trajectories.append({**key, "status": status, "tokens": tokens, "reward": sequence.reward})
                ended = {"end": "stop", "started_at": now, "finished_at": now}
                turns.append({**key, "turn": 0, "tokens": tokens, **ended})
                members.append({**key, "buffer": buffer, "version_tag": buffer, "staleness": 1})
                half = sequence.rollout.numel() // 2
                for seq, part in reversed([*enumerate([slice(0, half), slice(half, None)][half == 0 :])]):
                    sampled = sequence.ids[sequence.prompt_tokens :][part].tolist()
                    encoded = encode_ids(sampled), encode_logprobs(sequence.rollout[part].tolist())
                    end = "stop" if part.stop is None else None
                    segments.append(
                        {**segment, **key, "seq": seq, "version": buffer, "tokens": len(sampled), "end": end}
                        | dict(zip(("token_ids", "logprobs"), encoded, strict=True))
                    )
            connection.execute(insert(Trajectory), trajectories)
            connection.execute(insert(Turn), turns)
            connection.execute(insert(Segment), segments)
            connection.execute(insert(BatchMember), members)


def _run_row(run_id: str, values: dict[str, Any], steps: int) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "workflow_run_id": f"execution-of-{run_id}",
        "config": values,
        "total_steps": steps,
        "prompts": 1,
        "skipped_too_long": 0,
        "data_fingerprint": "",
        "phase": "running",
    }


def _group_row(run_id: str, group_id: str, buffer: int, sequence: SampledSequence) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "group_id": group_id,
        "purpose": "train",
        "epoch": 0,
        "position": 0,
        "row": 0,
        "version_tag": buffer,
        "prompt_ids": encode_ids(sequence.ids[: sequence.prompt_tokens].tolist()),
        "prompt_text": "",
        "data_source": "test",
        "ground_truth": None,
        "extra": {},
        "status": "trained",
    }


def _indices(batch: TrainBatch) -> list[int]:
    """Place of each sequence in its group."""
    seen: Counter[int] = Counter()
    indices = []
    for sequence in batch.sequences:
        indices.append(seen[sequence.group])
        seen[sequence.group] += 1
    return indices
