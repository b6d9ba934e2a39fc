"""A gateway over sessions in memory and a scripted model: what the real store and workflow promise, without either."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from psrl.activities.sessions.access import Caller
from psrl.activities.sessions.places import NewTurn, PlacedTurn
from psrl.activities.sessions.sessions import NewSession, StoredSession, digest
from psrl.activities.sessions.turns import KnownTurn, Sampled
from psrl.activities.sessions.view import BranchView, OpenSession, TurnView
from psrl.activities.store.branches import Fork
from psrl.schemas.config import RunConfig, parse_config
from psrl.schemas.errors import TurnInFlight
from psrl.schemas.ids import GroupId, InstanceId, RunId, SessionId, session_id
from psrl.schemas.messages.data import Purpose
from psrl.schemas.messages.rollout import RouteRequest, RouteResult, SegmentEnd
from psrl.schemas.messages.sessions import (
    AskedTurn,
    CloseSession,
    ContinueSession,
    HangSession,
    PlayedTurn,
    SessionRecord,
    StartSession,
)
from psrl.schemas.status import SessionStatus
from psrl.workers.gateway.app import Gateway
from tests.support.runs import config_values, ids_of

RUN, OTHER_RUN = RunId("run-1"), RunId("run-2")
GROUP = GroupId("000007")
NAME = session_id(GROUP, 0)
TOKEN, RUN_TOKEN = "token-of-the-session", "token-of-the-run"
EOS = 2
INSTANCE = InstanceId("rollout-0")


@dataclass
class Row:
    key: str | None
    given: list[int]
    fork: Fork | None
    node: str | None = None
    sampled: Sampled | None = None


@dataclass
class MemorySessions:
    """As `StoredSessions`."""

    model: Path
    settings: dict[str, object] = field(default_factory=dict)
    """Of `psrl.agentic_rl`."""
    purpose: Purpose = Purpose.TRAIN
    status: SessionStatus = SessionStatus.RUNNING
    rows: dict[tuple[int, int], Row] = field(default_factory=dict)
    opened: list[NewSession] = field(default_factory=list)
    taken_by_another: int = 0
    """How often another copy of the gateway takes the place first."""

    async def caller(self, token: str) -> Caller | None:
        known = {TOKEN: Caller(RUN, NAME), RUN_TOKEN: Caller(RUN, None), "other": Caller(OTHER_RUN, None)}
        known |= {new.token: Caller(new.run_id, session_id(new.group_id, 0)) for new in self.opened}
        return known.get(token)

    async def config(self, run_id: RunId) -> RunConfig:
        lengths = {"max_prompt_length": 20, "max_response_length": 300}
        values = config_values(self.model, Path("train.jsonl"), data=lengths)
        values["psrl"] |= {"agentic_rl": self.settings}
        values["rollout"] = {"max_model_len": 1000}
        return parse_config(values)

    async def find(self, run_id: RunId, name: SessionId) -> StoredSession | None:
        known = {(RUN, NAME): GROUP, **{(new.run_id, session_id(new.group_id, 0)): new.group_id for new in self.opened}}
        group = known.get((run_id, name))
        if group is None:
            return None
        purpose = self.purpose if group == GROUP else Purpose.OUTSIDE
        labels = next((new.labels for new in self.opened if new.group_id == group), {"x-request-id": "r"})
        return StoredSession(
            run_id=run_id,
            session_id=name,
            group_id=group,
            episode=0,
            episodes=2,
            purpose=purpose,
            version_tag=0,
            token_digest=digest(TOKEN),
            labels=labels,
            status=self.status,
            reason="",
        )

    async def open(self, new: NewSession, version_tag: int) -> SessionId:
        if all(known.group_id != new.group_id for known in self.opened):
            self.opened.append(new)
        return session_id(new.group_id, 0)

    async def known_turns(self, session: StoredSession) -> Sequence[KnownTurn]:
        return [
            KnownTurn(index, turn, row.node, row.sampled.end if row.sampled else None, row.key)
            for (index, turn), row in sorted(self.rows.items())
        ]

    async def prompt_tokens(self, session: StoredSession, index: int, turn: int) -> int:
        return len(self.before(index, turn))

    def before(self, index: int, turn: int) -> list[int]:
        """The context of what a turn samples."""
        first = self.rows[index, 0].fork
        ids = [] if first is None else self.until(first.index, first.turn)
        for number in range(turn):
            ids = [*ids, *self.rows[index, number].given, *self._sampled(index, number).token_ids]
        return [*ids, *self.rows[index, turn].given]

    def until(self, index: int, turn: int) -> list[int]:
        return [*self.before(index, turn), *self._sampled(index, turn).token_ids]

    async def place_turn(
        self, session: StoredSession, key: str, where: NewTurn, token_ids: Sequence[int]
    ) -> PlacedTurn:
        if self.taken_by_another:
            self.taken_by_another -= 1
            raise TurnInFlight("another copy was faster")
        turns = [turn for index, turn in self.rows if index == where.index]
        if turns and self.rows[where.index, max(turns)].sampled is None:
            raise TurnInFlight(f"branch {where.index} has turn {max(turns)} in flight")
        if len(turns) != where.turn:
            raise TurnInFlight(f"branch {where.index} comes to turn {len(turns)}")
        self.rows[where.index, len(turns)] = Row(key, list(token_ids), where.fork)
        return PlacedTurn(where.index, len(turns), None)

    async def give_up_turn(self, session: StoredSession, key: str) -> None:
        for row in self.rows.values():
            row.key = None if row.key == key else row.key

    async def sampled(self, session: StoredSession, index: int, turn: int) -> Sampled:
        return self._sampled(index, turn)

    async def name_turn(self, session: StoredSession, index: int, turn: int, node: str) -> None:
        self.rows[index, turn].node = node

    async def branches(self, session: StoredSession) -> Sequence[BranchView]:
        found = []
        for index in sorted({index for index, _ in self.rows}):
            turns = sorted(turn for at, turn in self.rows if at == index)
            views = [
                TurnView(turn, len(self.before(index, turn)), self._sampled(index, turn).token_ids) for turn in turns
            ]
            found.append(BranchView(index, self.until(index, turns[-1]), views, None))
        return found

    async def open_sessions(self, run_id: RunId) -> Sequence[OpenSession]:
        return [OpenSession(NAME, self.status, 0, 7, INSTANCE)]

    def _sampled(self, index: int, turn: int) -> Sampled:
        found = self.rows[index, turn].sampled
        assert found is not None, "a turn that has not ended has nothing to tell"
        return found


Answers = Callable[[int], str]
"""What the policy says, by how often it was asked. It ends its turn with the end of text."""


@dataclass
class MemoryWorkflows:
    """As `TemporalWorkflows`: every session runs."""

    sessions: MemorySessions
    answers: Answers = lambda number: f"answer {number}"
    asked: list[tuple[AskedTurn, str]] = field(default_factory=list)
    started: list[StartSession] = field(default_factory=list)
    hung: dict[SessionId, str] = field(default_factory=dict)
    continued: dict[SessionId, InstanceId | None] = field(default_factory=dict)
    closed_for: dict[SessionId, str] = field(default_factory=dict)
    failing: list[Exception] = field(default_factory=list)
    """Errors of the next turns."""
    began: asyncio.Event = field(default_factory=asyncio.Event)
    may_play: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_play.set()

    async def play(self, start: StartSession, asked: AskedTurn, key: str) -> PlayedTurn:
        self.asked.append((asked, key))
        number = len(self.asked) - 1
        self.began.set()
        await self.may_play.wait()
        if self.failing:
            raise self.failing.pop(0)
        row = self.sessions.rows[asked.index, asked.turn]
        ids = [*ids_of(self.answers(number)), EOS][: asked.sampling.max_tokens]
        end = SegmentEnd.STOP if ids[-1] == EOS else SegmentEnd.LENGTH
        if row.sampled is None:
            at = datetime(2026, 1, 1, tzinfo=UTC)
            row.sampled = Sampled(ids, [-0.5] * len(ids), [0] * len(ids), INSTANCE, end, at)
        return PlayedTurn(
            index=asked.index, turn=asked.turn, end=end, tokens=len(ids), versions=(0,), instance=INSTANCE
        )

    async def start(self, start: StartSession) -> None:
        self.started.append(start)

    async def record(self, run_id: RunId, name: SessionId) -> SessionRecord | None:
        if name not in (NAME, *(start.session_id for start in self.started)):
            return None
        status = SessionStatus.CLOSED if name in self.closed_for else self.sessions.status
        return SessionRecord(run_id=run_id, session_id=name, group_id=GROUP, status=status)

    async def hang(self, run_id: RunId, name: SessionId, request: HangSession) -> bool:
        self.hung[name] = request.reason
        return name == NAME

    async def go_on(self, run_id: RunId, name: SessionId, request: ContinueSession) -> bool:
        self.continued[name] = request.instance
        return name == NAME

    async def close(self, run_id: RunId, name: SessionId, request: CloseSession) -> bool:
        self.closed_for[name] = request.reason
        return True

    async def see_closed(self, start: StartSession, request: CloseSession) -> None:
        await self.start(start)
        self.closed_for[start.session_id] = request.reason


@dataclass
class Parts:
    sessions: MemorySessions
    workflows: MemoryWorkflows
    gateway: Gateway
    routed: list[RouteRequest]


def gateway_parts(model: Path, answers: Answers | None = None, **settings: object) -> Parts:
    sessions = MemorySessions(model, settings)
    workflows = MemoryWorkflows(sessions, answers) if answers else MemoryWorkflows(sessions)
    routed: list[RouteRequest] = []

    async def route(request: RouteRequest) -> RouteResult:
        routed.append(request)
        return RouteResult(placements=())

    return Parts(sessions, workflows, Gateway(sessions, workflows, route, "stack-1"), routed)
