"""Reads a buffer's batch from the store, always in order of (group, index): a replay sees what the first step saw.

Promises (L2, L5): a sequence is exactly what the engine saw and sampled on that branch; tokens of the branch that it
left are context there, whatever they are in their own sequence; a turn that has not ended is in no sequence.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from sqlalchemy import ColumnElement, Connection, Engine, Row, select

from ...activities.store.branches import Fork, fork_of, lineage
from ...activities.store.codec import decode_ids, decode_logprobs
from ...activities.training.batch import NO_VERSION, SampledSequence, TrainBatch
from ...schemas.errors import InvariantViolated
from ...schemas.ids import RunId
from ...schemas.messages.episodes import EpisodeOutcome, TerminateReason
from ...schemas.messages.rollout import SegmentEnd
from ...schemas.status import SegmentKind
from ...schemas.tables import BatchMember, Group, Segment, Trajectory, Turn

Key = tuple[str, int]
"""Group id and index of a trajectory, which is one branch."""


class ReadSegment(NamedTuple):
    """One segment, decoded."""

    turn: int
    kind: str
    ids: list[int]
    logprobs: list[float] | None
    """None, as is the version, when no engine sampled it."""
    version: int | None
    end: str | None


@dataclass(frozen=True)
class ReadGroup:
    """A group's prompt and all its branches, also those that are not trained on: others may have left them."""

    prompt: list[int]
    segments: dict[int, list[ReadSegment]]
    """Of the turns that have ended, by branch."""
    forks: dict[int, Fork | None]
    rewards: dict[int, float | None]
    outcomes: dict[int, EpisodeOutcome]
    """By first branch."""
    last: dict[int, int]
    """By episode, the branch on which it was answered last."""
    episodes: int
    """Branch k of episode e has index e + k * episodes."""

    def path(self, index: int) -> Iterable[tuple[ReadSegment, bool]]:
        """A branch's segments with those of the branches that it left, and whether each is its own."""
        for stretch in lineage(index, self.forks):
            for segment in self.segments.get(stretch.index, ()):
                if stretch.holds(segment.turn):
                    yield segment, stretch.index == index

    def truncated(self, episode: int) -> bool:
        """No room was left for another token, or the last answer, on whichever branch, was cut by its length."""
        outcome = self.outcomes.get(episode)
        if outcome is not None and outcome.ended is TerminateReason.MAX_RESPONSE_LENGTH_EXCEEDED:
            return True
        said: Sequence[ReadSegment] = self.segments.get(self.last[episode], ()) if episode in self.last else ()
        return bool(said) and said[-1].end == SegmentEnd.LENGTH


def read_batch(store: Engine, run_id: RunId, episodes: int, buffer: int) -> TrainBatch:
    """`episodes`: N' of the run. Raises `InvariantViolated` when the buffer has no members: the batch is made before
    the trainer is asked."""
    of_batch = (BatchMember.run_id == run_id) & (BatchMember.buffer == buffer)
    with store.connect() as connection:
        members = connection.execute(select(BatchMember.group_id, BatchMember.index).where(of_batch))
        # The database's collation may sort group ids in another way than Python does; the order must not depend on it.
        keys: list[Key] = sorted((group, index) for group, index in members)
        if not keys:
            raise InvariantViolated(
                f"batch {buffer} of run {run_id!r} is not in the store, and no checkpoint covers it"
            )
        # By literal group ids, not by a join: the primary keys serve it whatever the planner believes of the tables'
        # sizes. In a young database its statistics lag behind, and a join then reads every row of the run.
        groups = list(dict.fromkeys(group for group, _ in keys))
        read = _read_groups(connection, run_id, groups, episodes)
    numbers = {group: number for number, group in enumerate(groups)}
    return TrainBatch(tuple(_sequence(numbers[group], index, read[group]) for group, index in keys))


def _read_groups(connection: Connection, run_id: RunId, groups: list[str], episodes: int) -> Mapping[str, ReadGroup]:
    columns = (Trajectory.reward, Trajectory.forked_index, Trajectory.forked_turn, Trajectory.outcome)
    trajectories = connection.execute(
        select(Trajectory.group_id, Trajectory.index.label("branch"), *columns).where(_of(Trajectory, run_id, groups))
    )
    rows: dict[str, list[Row[Any]]] = {group: [] for group in groups}
    for row in trajectories:
        rows[row.group_id].append(row)
    prompts = connection.execute(select(Group.group_id, Group.prompt_ids).where(_of(Group, run_id, groups))).all()
    turns = connection.execute(
        select(Turn.group_id, Turn.index, Turn.turn, Turn.finished_at)
        .where(_of(Turn, run_id, groups))
        # Of turns that ended at the same moment, the branch that began last.
        .order_by(Turn.finished_at, Turn.index)
    )
    left_out: set[tuple[str, int, int]] = set()
    last: dict[str, dict[int, int]] = {group: {} for group in groups}
    for group, index, turn, finished_at in turns:
        if finished_at is None:
            left_out.add((group, index, turn))
        else:
            last[group][index % episodes] = index
    segments = connection.execute(
        select(Segment.group_id, Segment.index, Segment.turn, Segment.kind, Segment.token_ids, Segment.logprobs)
        .add_columns(Segment.version, Segment.end)
        .where(_of(Segment, run_id, groups))
        .order_by(Segment.group_id, Segment.index, Segment.turn, Segment.seq)
    )
    spoken: dict[str, dict[int, list[ReadSegment]]] = {group: {} for group in groups}
    for group, index, turn, kind, ids, logprobs, version, end in segments:
        if (group, index, turn) not in left_out:
            values = None if logprobs is None else decode_logprobs(logprobs)
            segment = ReadSegment(turn, kind, decode_ids(ids), values, version, end)
            spoken[group].setdefault(index, []).append(segment)
    return {
        group: _group(decode_ids(prompt), spoken[group], rows[group], last[group], episodes)
        for group, prompt in prompts
    }


def _group(
    prompt: list[int],
    spoken: dict[int, list[ReadSegment]],
    rows: Sequence[Row[Any]],
    last: dict[int, int],
    episodes: int,
) -> ReadGroup:
    return ReadGroup(
        prompt=prompt,
        segments=spoken,
        forks={row.branch: fork_of(row.forked_index, row.forked_turn) for row in rows},
        rewards={row.branch: row.reward for row in rows},
        outcomes={row.branch: EpisodeOutcome.model_validate(row.outcome) for row in rows if row.outcome is not None},
        last=last,
        episodes=episodes,
    )


def _of(
    table: type[Group] | type[Trajectory] | type[Turn] | type[Segment], run_id: RunId, groups: list[str]
) -> ColumnElement[bool]:
    return (table.run_id == run_id) & table.group_id.in_(groups)


def _sequence(number: int, index: int, group: ReadGroup) -> SampledSequence:
    ids, rollout, versions, mask = list(group.prompt), [], [], []
    for segment, own in group.path(index):
        count = len(segment.ids)
        sampled = own and segment.kind == SegmentKind.SAMPLED
        ids += segment.ids
        rollout += segment.logprobs if sampled and segment.logprobs is not None else [math.nan] * count
        versions += [segment.version if sampled and segment.version is not None else NO_VERSION] * count
        mask += [sampled] * count
    episode = index % group.episodes
    return SampledSequence(
        group=number,
        episode=episode,
        prompt_tokens=len(group.prompt),
        ids=torch.tensor(ids, dtype=torch.int64),
        rollout=torch.tensor(rollout, dtype=torch.float32),
        reward=group.rewards[index],
        versions=torch.tensor(versions, dtype=torch.int32),
        mask=torch.tensor(mask, dtype=torch.bool),
        truncated=group.truncated(episode),
    )
