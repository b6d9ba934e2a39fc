"""Reads a buffer's batch from the store, always in order of (group, index): a replay sees what the first step saw."""

import torch
from sqlalchemy import ColumnElement, Engine, select

from ...activities.store.codec import decode_ids, decode_logprobs
from ...activities.training.batch import SampledSequence, TrainBatch
from ...schemas.errors import InvariantViolated
from ...schemas.ids import RunId
from ...schemas.tables import BatchMember, Group, Segment, Trajectory

Key = tuple[str, int]
"""Group id and index."""


def read_batch(store: Engine, run_id: RunId, buffer: int) -> TrainBatch:
    """Raises `InvariantViolated` when the buffer has no members: the batch is made before the trainer is asked."""
    of_batch = (BatchMember.run_id == run_id) & (BatchMember.buffer == buffer)
    with store.connect() as connection:
        rewards = connection.execute(
            select(Trajectory.group_id, Trajectory.index, Trajectory.reward)
            .join(BatchMember, _same_trajectory(Trajectory))
            .where(of_batch)
            .order_by(Trajectory.group_id, Trajectory.index)
        ).all()
        prompts = connection.execute(
            select(Group.group_id, Group.prompt_ids).where(
                Group.run_id == run_id, Group.group_id.in_(select(BatchMember.group_id).where(of_batch))
            )
        ).all()
        segments = connection.execute(
            select(Segment.group_id, Segment.index, Segment.token_ids, Segment.logprobs)
            .join(BatchMember, _same_trajectory(Segment))
            .where(of_batch)
            .order_by(Segment.group_id, Segment.index, Segment.turn, Segment.seq)
        ).all()
    if not rewards:
        raise InvariantViolated(f"batch {buffer} of run {run_id!r} is not in the store, and no checkpoint covers it")
    # The database's collation may sort group ids in another way than Python does; the order must not depend on it.
    keys = sorted((group, index) for group, index, _ in rewards)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(group for group, _ in keys))}
    reward_of = {(group, index): reward for group, index, reward in rewards}
    prompt_of = {group: decode_ids(data) for group, data in prompts}
    sampled = _joined([(group, index, ids, logprobs) for group, index, ids, logprobs in segments])
    return TrainBatch(
        tuple(
            _sequence(numbers[key[0]], prompt_of[key[0]], *sampled.get(key, (b"", b"")), reward_of[key]) for key in keys
        )
    )


def _same_trajectory(table: type[Trajectory] | type[Segment]) -> ColumnElement[bool]:
    return (
        (BatchMember.run_id == table.run_id)
        & (BatchMember.group_id == table.group_id)
        & (BatchMember.index == table.index)
    )


def _joined(segments: list[tuple[str, int, bytes, bytes]]) -> dict[Key, tuple[bytes, bytes]]:
    """Ids and log-probs of each trajectory, its segments one after another."""
    parts: dict[Key, tuple[list[bytes], list[bytes]]] = {}
    for group, index, ids, logprobs in segments:
        into = parts.setdefault((group, index), ([], []))
        into[0].append(ids)
        into[1].append(logprobs)
    return {key: (b"".join(ids), b"".join(logprobs)) for key, (ids, logprobs) in parts.items()}


def _sequence(group: int, prompt: list[int], ids: bytes, logprobs: bytes, reward: float | None) -> SampledSequence:
    return SampledSequence(
        group=group,
        prompt_tokens=len(prompt),
        ids=torch.tensor(prompt + decode_ids(ids), dtype=torch.int64),
        rollout=torch.tensor(decode_logprobs(logprobs), dtype=torch.float32),
        reward=reward,
    )
