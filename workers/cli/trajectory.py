"""`psrl trajectory show`: one trajectory as people read it, a conversation where it is one.

A branch that left another is shown whole: first what the two have in common, under the other's number. What leaves it
is named where it does.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from ...activities.data.tokenizer import Tokenizer, load_tokenizer
from ...activities.store.branches import Fork, episodes_of, fork_of, lineage
from ...activities.store.codec import decode_ids, decode_logprobs
from ...schemas.errors import RunUnknown, UserError
from ...schemas.messages.episodes import EpisodeOutcome
from ...schemas.tables import BatchMember, Group, Run, Segment, Trajectory


@dataclass(frozen=True)
class Shown:
    group: Group
    trajectory: Trajectory
    branches: dict[int, Fork | None]
    """Of its episode, itself included, with what each left."""
    outcome: EpisodeOutcome | None
    segments: list[Segment]
    """Those of what it left come first."""
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
    episodes = episodes_of(run.config, group.purpose)
    branches = _branches(session, group, index % episodes, episodes)
    root = session.get(Trajectory, (run_id, wanted, index % episodes))
    outcome = EpisodeOutcome.model_validate(root.outcome) if root is not None and root.outcome else None
    member = session.get(BatchMember, (run_id, wanted, index))
    model = run.config["model"]
    tokenizer = load_tokenizer(model["path"], bool(model.get("trust_remote_code", False)))
    segments = list(_segments(session, group, index, branches))
    return Shown(group, trajectory, branches, outcome, segments, member.buffer if member else None, tokenizer)


def _branches(session: Session, group: Group, episode: int, episodes: int) -> dict[int, Fork | None]:
    of_group = (Trajectory.run_id == group.run_id, Trajectory.group_id == group.group_id)
    query = select(Trajectory.index, Trajectory.forked_index, Trajectory.forked_turn).where(*of_group)
    found = session.execute(query.where(Trajectory.index % episodes == episode).order_by(Trajectory.index))
    return {index: fork_of(left, turn) for index, left, turn in found}


def _segments(session: Session, group: Group, index: int, branches: dict[int, Fork | None]) -> Iterator[Segment]:
    of_group = (Segment.run_id == group.run_id, Segment.group_id == group.group_id)
    for stretch in lineage(index, branches):
        query = select(Segment).where(*of_group, Segment.index == stretch.index)
        for segment in session.scalars(query.order_by(Segment.turn, Segment.seq)):
            if stretch.holds(segment.turn):
                yield segment


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
    told += _episode(shown)
    if trajectory.reward_error:
        told.append(f"reward error: {trajectory.reward_error}")
    if trajectory.reward_metrics:
        told.append("reward metrics: " + ", ".join(f"{name} {v:g}" for name, v in trajectory.reward_metrics.items()))
    told += _conversation(shown)
    return told if shown.segments else [*told, "no segment yet"]


def _episode(shown: Shown) -> Iterator[str]:
    """What is to be said of an episode that is more than one answer."""
    if len(shown.branches) > 1:
        yield f"one of the branches {', '.join(str(index) for index in shown.branches)} of its episode"
    if shown.outcome is not None:
        worth = "" if shown.outcome.reward is None else f", which it says is worth {shown.outcome.reward:g}"
        yield f"the episode ended as {shown.outcome.ended}{worth}"
        if shown.outcome.info:
            yield "  " + ", ".join(f"{name} {value!r}" for name, value in shown.outcome.info.items())


def _conversation(shown: Shown) -> Iterator[str]:
    own = shown.trajectory.index
    for number, segment in enumerate(shown.segments):
        whose = "" if segment.index == own else f"trajectory {segment.index} "
        yield f"{whose}turn {segment.turn} segment {segment.seq}: {_described(segment)}"
        yield f"  {shown.tokenizer.decode(decode_ids(segment.token_ids), skip_special_tokens=False)!r}"
        following = shown.segments[number + 1] if number + 1 < len(shown.segments) else None
        if following is None or (following.index, following.turn) != (segment.index, segment.turn):
            here = Fork(segment.index, segment.turn)
            yield from _leaving(shown, here, None if following is None else following.index)


def _leaving(shown: Shown, here: Fork, following: int | None) -> Iterator[str]:
    """After the last segment of a turn. `following`: the branch that the conversation goes on with."""
    others = [index for index, fork in shown.branches.items() if fork == here and index != following]
    if others:
        verb = "leaves" if len(others) == 1 else "leave"
        yield f"trajectory {', '.join(str(index) for index in others)} {verb} it here"


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
