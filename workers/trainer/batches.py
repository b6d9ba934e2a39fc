"""Reads a buffer's batch from the store, always in order of (group, index): a replay sees what the first step saw."""

import math
from typing import NamedTuple

import torch
from sqlalchemy import ColumnElement, Engine, select

from ...activities.store.codec import decode_ids, decode_logprobs
from ...activities.training.batch import NO_VERSION, SampledSequence, TrainBatch
from ...schemas.errors import InvariantViolated
from ...schemas.ids import RunId
from ...schemas.messages.rollout import SegmentEnd
from ...schemas.status import SegmentKind
from ...schemas.tables import BatchMember, Group, Segment, Trajectory

Key = tuple[str, int]
"""Group id and index."""


class ReadSegment(NamedTuple):
    """One segment, decoded."""

    kind: str
    ids: list[int]
    logprobs: list[float] | None
    """None, as is the version, when no engine sampled it."""
    version: int | None
    end: str | None


def read_batch(store: Engine, run_id: RunId, buffer: int) -> TrainBatch:
    """Raises `InvariantViolated` when the buffer has no members: the batch is made before the trainer is asked."""
    of_batch = (BatchMember.run_id == run_id) & (BatchMember.buffer == buffer)
    with store.connect() as connection:
        members = {
            (group, index)
            for group, index in connection.execute(select(BatchMember.group_id, BatchMember.index).where(of_batch))
        }
        # By literal group ids, not by a join: the primary keys serve it whatever the planner believes of the tables'
        # sizes. In a young database its statistics lag behind, and a join then reads every row of the run.
        groups = sorted({group for group, _ in members})
        rewards = connection.execute(
            select(Trajectory.group_id, Trajectory.index, Trajectory.reward).where(_of(Trajectory, run_id, groups))
        ).all()
        prompts = connection.execute(select(Group.group_id, Group.prompt_ids).where(_of(Group, run_id, groups))).all()
        segments = connection.execute(
            select(Segment.group_id, Segment.index, Segment.kind, Segment.token_ids, Segment.logprobs)
            .add_columns(Segment.version, Segment.end)
            .where(_of(Segment, run_id, groups))
            .order_by(Segment.group_id, Segment.index, Segment.turn, Segment.seq)
        ).all()
    if not members:
        raise InvariantViolated(f"batch {buffer} of run {run_id!r} is not in the store, and no checkpoint covers it")
    # The database's collation may sort group ids in another way than Python does; the order must not depend on it.
    keys = sorted(members)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(group for group, _ in keys))}
    reward_of = {(group, index): reward for group, index, reward in rewards}
    prompt_of = {group: decode_ids(data) for group, data in prompts}
    read: dict[Key, list[ReadSegment]] = {}
    for group, index, kind, ids, logprobs, version, end in segments:
        values = None if logprobs is None else decode_logprobs(logprobs)
        read.setdefault((group, index), []).append(ReadSegment(kind, decode_ids(ids), values, version, end))
    return TrainBatch(
        tuple(_sequence(numbers[key[0]], prompt_of[key[0]], read.get(key, []), reward_of[key]) for key in keys)
    )


def _of(table: type[Group] | type[Trajectory] | type[Segment], run_id: RunId, groups: list[str]) -> ColumnElement[bool]:
    return (table.run_id == run_id) & table.group_id.in_(groups)


def _sequence(group: int, prompt: list[int], segments: list[ReadSegment], reward: float | None) -> SampledSequence:
    ids, rollout, versions, mask = list(prompt), [], [], []
    for segment in segments:
        count = len(segment.ids)
        ids += segment.ids
        rollout += [math.nan] * count if segment.logprobs is None else segment.logprobs
        versions += [NO_VERSION if segment.version is None else segment.version] * count
        mask += [segment.kind == SegmentKind.SAMPLED] * count
    return SampledSequence(
        group=group,
        prompt_tokens=len(prompt),
        ids=torch.tensor(ids, dtype=torch.int64),
        rollout=torch.tensor(rollout, dtype=torch.float32),
        reward=reward,
        versions=torch.tensor(versions, dtype=torch.int32),
        mask=torch.tensor(mask, dtype=torch.bool),
        truncated=bool(segments) and segments[-1].end == SegmentEnd.LENGTH,
    )
