"""The activity that lets an agent play an episode: a session is opened for it, and closed in every case.

Promises: an episode that ended well is played once; an agent reaches no session but its own, also when its worker has
died and another plays the episode again; what an abandoned attempt sampled is set aside before the next one begins.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio import activity

from ...schemas.config import RunConfig
from ...schemas.errors import InvariantViolated, PsrlError
from ...schemas.ids import RunId, SessionId
from ...schemas.messages.agents import AgentRun, AgentTask, RunAgent
from ...schemas.messages.episodes import EpisodeOutcome, TerminateReason
from ...schemas.messages.sessions import CloseSession, StartSession
from ...schemas.seeds import group_seed, turn_seed
from ..boundary import boundary
from ..heartbeat import heartbeating
from ..sessions.access import new_token
from ..sessions.running import RunningSessions
from ..sessions.sessions import NewSession, find_session, open_session
from ..sessions.starts import start_of
from ..store.runs import AdmittedRuns
from ..user_code.kept import KeptPerRun
from .agent import recipe
from .episodes import Episode, end_episode, ended_before, read_episode, set_aside
from .gateway import require_gateway
from .run import Ended, run_to_its_end

FOLDER = "agents"
"""Under the stack's home: what agents print, a folder per run and a file per session."""


@dataclass(frozen=True, slots=True)
class Opened:
    start: StartSession
    token: str


class Agents:
    def __init__(
        self, store: AsyncEngine, sessions: RunningSessions, *, gateway: str, stack_id: str, home: Path
    ) -> None:
        """`gateway`: its address."""
        self._store, self._sessions = store, sessions
        self._gateway, self._stack_id, self._home = gateway, stack_id, home
        self._runs = AdmittedRuns()
        self._rooms = KeptPerRun[asyncio.Semaphore]()

    @activity.defn(name="run_agent")
    @boundary
    async def run_agent(self, request: RunAgent) -> AgentRun:
        async with heartbeating():
            async with self._store.connect() as connection:
                config = (await self._runs.get(connection, request.run_id)).config
            async with self._rooms.get(request.run_id, lambda: _room(config)):
                return await self._play(request, config)

    async def _play(self, request: RunAgent, config: RunConfig) -> AgentRun:
        episode = await read_episode(self._store, request)
        if episode.outcome is not None and _decided(episode.outcome.ended):
            return await ended_before(self._store, request, episode.outcome)
        if episode.session is not None:
            start = await self._start_of(request.run_id, episode.session, config)
            await self._sessions.see_closed(start, CloseSession(reason="the attempt was given up", cut=True))
            await set_aside(self._store, request, episode.session)
            episode = await read_episode(self._store, request)
        await require_gateway(self._gateway, self._stack_id)
        opened = await self._open(request, episode, config)
        try:
            ended = await self._run(request, episode, config, opened)
            await self._close(opened, ended)
        except asyncio.CancelledError:
            await self._abort(request, opened)
            raise
        outcome = EpisodeOutcome(ended=ended.reason, reward=ended.said.reward, info=ended.said.info)
        return await end_episode(self._store, request, opened.start.session_id, outcome, ended.error)

    async def _open(self, request: RunAgent, episode: Episode, config: RunConfig) -> Opened:
        token = new_token()
        new = NewSession(
            request.run_id,
            request.group_id,
            episode=request.episode,
            episodes=request.episodes,
            token=token,
            attempt=episode.sessions + 1,
        )
        name = await open_session(self._store, new)
        start = await self._start_of(request.run_id, name, config)
        opened = Opened(start.model_copy(update={"first_call": episode.first_call}), token)
        await self._sessions.start(opened.start)
        return opened

    async def _run(self, request: RunAgent, episode: Episode, config: RunConfig, opened: Opened) -> Ended:
        name, agentic = opened.start.session_id, config.psrl.agentic_rl
        task = AgentTask(
            base_url=f"http://{self._gateway}/sessions/{name}/v1",
            api_key=opened.token,
            model=request.run_id,
            prompt=episode.prompt,
            messages=episode.messages,
            extra=episode.extra,
            seed=turn_seed(group_seed(config.trainer.seed, request.group_id), request.episode, episode.sessions),
            session_id=name,
        )
        printed_to = self._home / FOLDER / request.run_id / f"{name}.log"
        return await run_to_its_end(recipe(agentic), task, agentic.agent_timeout_s, printed_to)

    async def _close(self, opened: Opened, ended: Ended) -> None:
        """An agent that ended by itself may have left a turn in flight, which may end; of one that was killed nobody
        waits for it."""
        killed = ended.reason in (TerminateReason.TRAJECTORY_TIMEOUT, TerminateReason.ROLLOUT_ERROR)
        reason = ended.error.partition("\n")[0] or "the agent is done"
        await self._sessions.see_closed(opened.start, CloseSession(reason=reason, cut=killed))

    async def _abort(self, request: RunAgent, opened: Opened) -> None:
        """Nobody needs the episode any more. Best effort: a session that is not closed here closes by itself, for want
        of turns."""
        try:
            await self._sessions.see_closed(opened.start, CloseSession(reason="nobody needs it any more", cut=True))
            outcome = EpisodeOutcome(ended=TerminateReason.ABORTED)
            await end_episode(self._store, request, opened.start.session_id, outcome)
        except PsrlError as error:
            activity.logger.warning("session %s is left to its time limit: %s", opened.start.session_id, error)

    async def _start_of(self, run_id: RunId, name: SessionId, config: RunConfig) -> StartSession:
        found = await find_session(self._store, run_id, name)
        if found is None:
            raise InvariantViolated(f"session {name} of run {run_id} is not in the store")
        return start_of(found, config)


def _decided(ended: TerminateReason) -> bool:
    """It was played to an end that no other attempt at the call may change."""
    return ended.success or ended is TerminateReason.DROPPED


def _room(config: RunConfig) -> asyncio.Semaphore:
    return asyncio.Semaphore(config.psrl.agentic_rl.max_concurrent_agents)
