"""`psrl session`: conversations with agents, as the store has them, and what a person tells their workflows."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, text
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from ...activities.store.reach import opened
from ...schemas.errors import NotOurs, RunUnknown, Unreachable, UserError, nearest
from ...schemas.ids import InstanceId, RunId, SessionId, session_workflow
from ...schemas.messages.sessions import CloseSession, ContinueSession, HangSession, SessionRecord
from ...schemas.stack import Stack
from ...schemas.status import SegmentKind, SessionStatus
from ...schemas.tables import Run
from .runs import NO_WORKER, RPC_TIMEOUT, temporal_of

SESSIONS = text(
    """
    SELECT s.session_id, s.group_id, s.status, s.reason,
           (SELECT count(*) FROM trajectories t WHERE t.run_id = s.run_id AND t.group_id = s.group_id
                AND t.index % s.episodes = s.episode),
           (SELECT count(*) FROM turns t WHERE t.run_id = s.run_id AND t.group_id = s.group_id
                AND t.index % s.episodes = s.episode AND t."end" IS NOT NULL),
           (SELECT coalesce(sum(t.tokens), 0) FROM trajectories t WHERE t.run_id = s.run_id
                AND t.group_id = s.group_id AND t.index % s.episodes = s.episode)
    FROM sessions s
    WHERE s.run_id = :run AND (s.status <> :closed OR :all OR s.session_id = :name)
    ORDER BY s.opened_at, s.session_id
    """
)

TURNS = text(
    f"""
    SELECT t.index, t.turn, t."end", t.started_at, t.finished_at,
           coalesce(sum(s.tokens) FILTER (WHERE s.kind = '{SegmentKind.ENVIRONMENT}'), 0) AS given,
           coalesce(sum(s.tokens) FILTER (WHERE s.kind = '{SegmentKind.SAMPLED}'), 0) AS sampled,
           array_agg(DISTINCT s.version) FILTER (WHERE s.version IS NOT NULL) AS versions,
           array_agg(DISTINCT s.instance) FILTER (WHERE s.instance IS NOT NULL) AS instances
    FROM turns t JOIN sessions o ON o.run_id = t.run_id AND o.group_id = t.group_id AND t.index % o.episodes = o.episode
    LEFT JOIN segments s ON (s.run_id, s.group_id, s.index, s.turn) = (t.run_id, t.group_id, t.index, t.turn)
    WHERE t.run_id = :run AND o.session_id = :name
    GROUP BY t.run_id, t.group_id, t.index, t.turn ORDER BY t.index, t.turn
    """
)


@dataclass(frozen=True, slots=True)
class Listed:
    """One session."""

    name: str
    group: str
    status: str
    reason: str
    branches: int
    turns: int
    tokens: int
    """Sampled."""

    def line(self) -> str:
        branches = f"{self.branches} branch{'es' if self.branches != 1 else ''}"
        turns = f"{self.turns} turn{'s' if self.turns != 1 else ''}"
        why = f": {self.reason}" if self.reason else ""
        return f"{self.name:20} {self.status:8} {branches}, {turns}, {self.tokens} tokens{why}"


def list_sessions(stack: Stack, run_id: str, closed: bool) -> list[str]:
    """A line for each. Raises `RunUnknown`."""
    with opened(stack.postgres_url, stack.store_id) as store:
        found = _sessions(store, run_id, closed=closed)
    if not found:
        return [
            f"run {run_id} has no session" if closed else f"run {run_id} has no open session; --all shows closed ones"
        ]
    return [one.line() for one in found]


async def show_session(stack: Stack, run_id: str, name: str) -> list[str]:
    """Its state, then every turn. Raises `RunUnknown`, or `UserError` naming those there are."""
    with opened(stack.postgres_url, stack.store_id) as store:
        listed = _known(store, run_id, name)
        turns = _turns(store, run_id, name)
    async with temporal_of(stack) as client:
        record = await _record(client, run_id, name)
    return [_head(listed, record), *turns, *_seen_at(run_id, listed.group, turns)]


async def hang_session(stack: Stack, run_id: str, name: str, reason: str) -> str:
    """Returns what to tell. Raises as `show_session` does."""
    record = await _signal(stack, run_id, name, "hang", HangSession(reason=reason))
    until = f"until `psrl session continue {run_id} {name}`, or its limit, psrl.agentic_rl.session_hang_timeout_s"
    if record is None:
        return f"session {name} hangs when its workflow takes the signal, {until}"
    if record.status in (SessionStatus.CLOSING, SessionStatus.CLOSED):
        raise UserError(f"session {name} is {record.status}: it hangs no more")
    if record.hang_pending:
        return f"session {name} hangs when the turn in flight has ended, {until}"
    return f"session {name} hangs: it starts no turn {until}"


async def continue_session(stack: Stack, run_id: str, name: str, instance: str | None) -> str:
    if instance is not None and instance not in stack.instances:
        there = ", ".join(stack.instances)
        raise UserError(f"--instance {instance!r} is none of this stack's{nearest(instance, stack.instances)}: {there}")
    request = ContinueSession(instance=None if instance is None else InstanceId(instance))
    record = await _signal(stack, run_id, name, "continue", request)
    if record is not None and record.status in (SessionStatus.CLOSING, SessionStatus.CLOSED):
        raise UserError(f"session {name} is {record.status}: it does not continue")
    where = f"; its next turn begins on {instance} if there is room" if instance else ""
    return f"session {name} continues{where}"


async def close_session(stack: Stack, run_id: str, name: str, reason: str) -> str:
    await _signal(stack, run_id, name, "close", CloseSession(reason=reason))
    return f"session {name} closes when its turns in flight have ended, or its drain limit has"


async def _signal(
    stack: Stack, run_id: str, name: str, signal: str, request: HangSession | ContinueSession | CloseSession
) -> SessionRecord | None:
    """What it says of itself then; None when no orchestrator answers now."""
    with opened(stack.postgres_url, stack.store_id) as store:
        listed = _known(store, run_id, name)
    async with temporal_of(stack) as client:
        handle = client.get_workflow_handle(session_workflow(RunId(run_id), SessionId(name)))
        try:
            await handle.signal(signal, request, rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            raise UserError(_not_open(run_id, listed)) from error
        return await _record(client, run_id, name)


async def _record(client: Client, run_id: str, name: str) -> SessionRecord | None:
    """None when no orchestrator answers, or Temporal has forgotten it: then the store knows."""
    handle = client.get_workflow_handle(session_workflow(RunId(run_id), SessionId(name)))
    try:
        record: SessionRecord = await handle.query("record", result_type=SessionRecord, rpc_timeout=RPC_TIMEOUT)
    except NotOurs:
        raise
    except Unreachable:
        return None
    except RPCError as error:
        if error.status in (*NO_WORKER, RPCStatusCode.NOT_FOUND):
            return None
        raise
    return record


def _not_open(run_id: str, listed: Listed) -> str:
    if listed.status == SessionStatus.CLOSED:
        return f"session {listed.name} is closed" + (f": {listed.reason}" if listed.reason else "")
    return f"session {listed.name} is not running; `psrl session list {run_id}` shows those that are open"


def _known(store: Engine, run_id: str, name: str) -> Listed:
    found = {one.name: one for one in _sessions(store, run_id, name=name)}
    if name not in found:
        there = ", ".join(found) or "none"
        raise UserError(f"run {run_id} has no session {name!r}{nearest(name, list(found))}; open now: {there}")
    return found[name]


def _sessions(store: Engine, run_id: str, *, closed: bool = False, name: str = "") -> list[Listed]:
    """The eldest first; the one that is named also if it is closed."""
    values = {"run": run_id, "closed": SessionStatus.CLOSED.value, "all": closed, "name": name}
    with store.connect() as connection:
        if connection.scalar(text(f"SELECT 1 FROM {Run.__tablename__} WHERE run_id = :run"), {"run": run_id}) is None:
            raise RunUnknown(f"no run {run_id!r} in the store; `psrl status` lists the runs that are")
        return [Listed(*row) for row in connection.execute(SESSIONS, values)]


def _turns(store: Engine, run_id: str, name: str) -> list[str]:
    with store.connect() as connection:
        rows = connection.execute(TURNS, {"run": run_id, "name": name}).all()
    return [_turn(row) for row in rows]


def _turn(row: Any) -> str:
    told = f"trajectory {row.index} turn {row.turn}: {row.given} tokens in, {row.sampled} out"
    if row.versions:
        told += f", {'→'.join(f'v{version}' for version in row.versions)} on {', '.join(row.instances)}"
    took = f", {(row.finished_at - row.started_at).total_seconds():.2f} s" if row.finished_at else ""
    return f"{told}{took}, {row.end or 'in flight'}"


def _head(listed: Listed, record: SessionRecord | None) -> str:
    if record is None:
        return listed.line()
    pending = ", hangs after the turn in flight" if record.hang_pending else ""
    why = f": {record.reason}" if record.reason else ""
    return f"session {listed.name} of group {listed.group} is {record.status}{pending}{why}"


def _seen_at(run_id: str, group: str, turns: list[str]) -> list[str]:
    return [f"`psrl trajectory show {run_id} {group} INDEX` prints what was said"] if turns else ["no turn yet"]
