"""Episodes of several turns and branches, as those who play them leave them in the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.store.branches import Fork
from psrl.activities.store.codec import encode_ids, encode_logprobs
from psrl.schemas.messages.episodes import EpisodeOutcome, TerminateReason
from psrl.schemas.tables import Segment, Trajectory, Turn
from tests.support.runs import RUN, ids_of

FINISHED = EpisodeOutcome(ended=TerminateReason.FINISHED)


@dataclass(frozen=True)
class Said:
    """One turn."""

    environment: Sequence[int] = ()
    policy: Sequence[int] = ()
    end: str | None = "stop"


@dataclass(frozen=True)
class Branch:
    index: int
    turns: Sequence[Said] = ()
    fork: Fork | None = None


def said(environment: str, policy: str, end: str | None = "stop") -> Said:
    """As the tiny tokenizer spells it."""
    return Said(ids_of(environment), ids_of(policy), end)


def logprob_of(token: int) -> float:
    """What the engine gave for it: made of its id, so that a token can be told by it."""
    return -token / 64


def put_episode(
    connection: Connection,
    group: str,
    branches: Sequence[Branch],
    *,
    outcome: EpisodeOutcome | None = FINISHED,
    version: int = 0,
) -> None:
    """The first branch first. Each sampled turn has two segments where it is long enough."""
    first = branches[0].index
    for branch in branches:
        key = {"run_id": RUN, "group_id": group, "index": branch.index}
        ended = bool(branch.turns) and branch.turns[-1].end is not None
        row: dict[str, Any] = {"status": "finished" if ended else "pending", "fence": 1}
        row |= {"tokens": sum(len(turn.policy) for turn in branch.turns)}
        if branch.fork is not None:
            row |= {"forked_index": branch.fork.index, "forked_turn": branch.fork.turn}
        if branch.index == first and outcome is not None:
            row |= {"outcome": outcome.model_dump(mode="json")}
        place = [Trajectory.run_id, Trajectory.group_id, Trajectory.index]
        made = insert(Trajectory).values({**key, **row})
        connection.execute(made.on_conflict_do_update(index_elements=place, set_=row))
        for number, turn in enumerate(branch.turns):
            _put_turn(connection, {**key, "turn": number}, turn, version)


async def add_episode(
    store: AsyncEngine, group: str, *branches: Branch, outcome: EpisodeOutcome | None = FINISHED, version: int = 0
) -> None:
    async with store.begin() as connection:
        await connection.run_sync(put_episode, group, branches, outcome=outcome, version=version)


def _put_turn(connection: Connection, key: dict[str, Any], turn: Said, version: int) -> None:
    now = datetime.now(UTC)
    times = {"started_at": now, "finished_at": now}
    row = {**key, "tokens": len(turn.policy), "end": turn.end, "started_at": now}
    connection.execute(insert(Turn).values({**row, "finished_at": now if turn.end else None}))
    half = len(turn.policy) // 2
    parts = [part for part in (turn.policy[:half], turn.policy[half:]) if part]
    if turn.environment:
        given = {**key, "seq": 0, "kind": "environment", "fence": 0, "tokens": len(turn.environment), **times}
        connection.execute(insert(Segment).values({**given, "token_ids": encode_ids(turn.environment)}))
    for seq, part in enumerate(parts, start=1 if turn.environment else 0):
        row = {**key, "seq": seq, "fence": 1, "version": version, "instance": "rollout-0", "tokens": len(part)}
        row |= {"token_ids": encode_ids(part), "logprobs": encode_logprobs([logprob_of(token) for token in part])}
        row |= {"kv_kept": True if part is not parts[0] else None, "end": turn.end if part is parts[-1] else None}
        connection.execute(insert(Segment).values({**row, **times}))
