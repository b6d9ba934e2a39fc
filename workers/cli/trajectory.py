"""`psrl trajectory show`: one trajectory as people read it."""

import math
from dataclasses import dataclass

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from ...activities.data.tokenizer import Tokenizer, load_tokenizer
from ...activities.store.codec import decode_ids, decode_logprobs
from ...schemas.errors import RunUnknown, UserError
from ...schemas.tables import BatchMember, Group, Run, Segment, Trajectory


@dataclass(frozen=True)
class Shown:
    group: Group
    trajectory: Trajectory
    segments: list[Segment]
    buffer: int | None
    """Where it was trained on."""
    tokenizer: Tokenizer


def find(store: Engine, run_id: str, group_id: str, index: int) -> Shown:
    """Raises `RunUnknown`, or `UserError` naming what there is."""
    with Session(store, expire_on_commit=False) as session:
        return _find(session, run_id, group_id, index)


def _find(session: Session, run_id: str, group_id: str, index: int) -> Shown:
    run = session.get(Run, run_id)
    if run is None:
        raise RunUnknown(f"no run {run_id!r} in the store; `psrl status` lists the runs that are")
    wanted = f"{int(group_id):06d}" if group_id.isdigit() else group_id
    group = session.get(Group, (run_id, wanted))
    if group is None:
        of_run = select(Group.group_id).where(Group.run_id == run_id).order_by(Group.group_id)
        first, last = session.scalar(of_run), session.scalar(of_run.order_by(None).order_by(Group.group_id.desc()))
        there = f"its groups go from {first} to {last}" if first else "it has none yet"
        raise UserError(f"run {run_id} has no group {wanted!r}; {there}")
    trajectory = session.get(Trajectory, (run_id, wanted, index))
    if trajectory is None:
        of_group = select(Trajectory.index).where(Trajectory.run_id == run_id, Trajectory.group_id == wanted)
        indices = ", ".join(str(one) for one in sorted(session.scalars(of_group)))
        raise UserError(f"group {wanted} has no trajectory {index}; allowed: {indices or 'none'}")
    where = (Segment.run_id == run_id, Segment.group_id == wanted, Segment.index == index)
    segments = list(session.scalars(select(Segment).where(*where).order_by(Segment.turn, Segment.seq)))
    member = session.get(BatchMember, (run_id, wanted, index))
    model = run.config["model"]
    tokenizer = load_tokenizer(model["path"], bool(model.get("trust_remote_code", False)))
    return Shown(group, trajectory, segments, member.buffer if member else None, tokenizer)


def lines(shown: Shown) -> list[str]:
    group, trajectory = shown.group, shown.trajectory
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    trained = "not trained on" if shown.buffer is None else f"trained in buffer {shown.buffer}"
    told = [
        f"{group.run_id}/group/{group.group_id} trajectory {trajectory.index}: {trajectory.status}, reward {reward}, "
        f"tag v{group.version_tag}, {trained}",
        f"prompt: {group.prompt_text}",
        f"ground truth: {group.ground_truth}",
    ]
    if trajectory.reward_error:
        told.append(f"reward error: {trajectory.reward_error}")
    if trajectory.reward_metrics:
        told.append("reward metrics: " + ", ".join(f"{name} {v:g}" for name, v in trajectory.reward_metrics.items()))
    for segment in shown.segments:
        told.append(f"turn {segment.turn} segment {segment.seq}: {_described(segment)}")
        told.append(f"  {shown.tokenizer.decode(decode_ids(segment.token_ids), skip_special_tokens=False)!r}")
    if not shown.segments:
        told.append("no segment yet")
    return told


def _described(segment: Segment) -> str:
    if segment.logprobs is None:
        return f"{segment.kind}, {segment.tokens} tokens"
    facts = [
        f"v{segment.version} on {segment.instance}",
        f"{segment.tokens} tokens",
        f"mean log-prob {_mean(decode_logprobs(segment.logprobs))}",
        f"{(segment.finished_at - segment.started_at).total_seconds():.2f} s",
    ]
    if segment.kv_kept is not None:
        facts.append("KV cache kept" if segment.kv_kept else "KV cache rebuilt")
    return ", ".join([*facts, segment.end or "to be continued"])


def _mean(values: list[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    return f"{sum(known) / len(known):.3f}" if known else "none"
