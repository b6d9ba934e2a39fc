"""The activity by which an environment answers a turn of the policy. Called by `workflows.rollout.actor`.

Promises: asked again, it says what is stored (L8); the environment's tokens are rendered behind the sampled ones, none
of which is tokenised again (L5); an environment that fails or takes too long on every try ends its episode with that
reason, and a limit that was reached ends it like any other end.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio import activity

from ...schemas.config import RunConfig
from ...schemas.errors import ConversationRefused, UserCodeFailed
from ...schemas.messages.environments import CloseEnvironments, EnvironmentStep, StepEnvironment, StoredStep
from ...schemas.messages.episodes import TerminateReason
from ..boundary import boundary
from ..capture.model import ChatModel
from ..heartbeat import heartbeating
from ..loaded import LoadedOnce
from ..store.connections import one_statement_each
from ..store.runs import AdmittedRuns
from ..user_code.attempts import MAX_PAUSE_S, RETRY_PAUSE_S
from ..user_code.kept import KEPT_RUNS
from .environment import Action, Step
from .keeper import Answered, HostGone, Keeper, Key, Past
from .load import loaded
from .loop import TookTooLong
from .reading import Played, Said, ended_by, outcome_of, read_turn, room_after, task_of
from .stored import Episode, claim_step, read_episode, read_sampled, write_step

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Environments:
    """`queue`: the task queue that only this process polls."""

    def __init__(self, store: AsyncEngine, queue: str) -> None:
        self._store, self._alone, self._queue = store, one_statement_each(store), queue
        self._runs = AdmittedRuns()
        self._played = LoadedOnce[str, Played](KEPT_RUNS)
        self._keeper = Keeper()
        self._text = ThreadPoolExecutor(1, thread_name_prefix="text")
        """A tokenizer is not to be shared."""

    @activity.defn(name="step_environment")
    @boundary
    async def step_environment(self, request: StepEnvironment) -> EnvironmentStep:
        async with heartbeating():
            async with self._alone.connect() as connection:
                episode = await read_episode(connection, request)
                config = await self._runs.config(connection, request.run_id, episode.workflow_run_id)
            step = episode.turns[-1].step
            if step is None or not step.done:
                run = await self._of_run(episode.workflow_run_id, config)
                step = await self._step(request, episode, run)
        here = step.ended is None and _key(request) in self._keeper
        return EnvironmentStep(
            ended=step.ended, error=step.error, max_tokens=step.max_tokens, queue=self._queue if here else ""
        )

    @activity.defn(name="close_environments")
    @boundary
    async def close_environments(self, request: CloseEnvironments) -> None:
        for index in request.indices:
            self._keeper.close((request.run_id, request.group_id, index))

    async def end(self) -> None:
        """Of the process."""
        await self._keeper.end()
        self._text.shutdown(wait=False, cancel_futures=True)

    async def _step(self, request: StepEnvironment, episode: Episode, run: Played) -> StoredStep:
        """Ask the environment, decide what comes of it, store it."""
        (said,) = await self._read(request, episode, run, [request.turn])
        ids: Sequence[int] = ()
        try:
            answered = await self._answered(request, episode, run, said.action)
            ended = ended_by(answered.step, request.turn, run.config.psrl.agentic_rl.max_turns)
            if ended is None:
                ids = await self._render(run, said, answered.step)
        except TookTooLong as failure:
            step = StoredStep(ended=TerminateReason.ENV_TIMEOUT, error=str(failure))
        except (UserCodeFailed, HostGone) as failure:
            step = StoredStep(ended=TerminateReason.ROLLOUT_ERROR, error=str(failure))
        else:
            room = room_after(run, episode, ids)
            if ended is None and room < 1:
                ended = TerminateReason.MAX_RESPONSE_LENGTH_EXCEEDED
            step = StoredStep(
                reward=answered.step.reward,
                info=dict(answered.step.info),
                ended=ended,
                max_tokens=room if ended is None else 0,
                state=answered.state,
            )
        if step.ended is not None:
            self._keeper.close(_key(request))
        return await self._write(request, episode, step, ids)

    async def _answered(self, request: StepEnvironment, episode: Episode, run: Played, action: Action) -> Answered:
        """Tried several times. Raises `UserCodeFailed` with the last failure, and `HostGone`."""
        agentic = run.config.psrl.agentic_rl
        past, failure = self._past(request, episode, run), None
        for number in range(1, agentic.step_max_attempts + 1):
            try:
                return await self._keeper.answer(_key(request), action, past)
            except HostGone as gone:
                # It must not be repeated: what it failed by before is the reason.
                raise failure or gone from None
            except UserCodeFailed as error:
                failure = error
                log.warning("environment of %s: try %d: %s", _key(request), number, error)
            if number < agentic.step_max_attempts:
                await asyncio.sleep(min(RETRY_PAUSE_S * 2 ** (number - 1), MAX_PAUSE_S))
        assert failure is not None
        raise failure

    def _past(self, request: StepEnvironment, episode: Episode, run: Played) -> Past:
        async def actions() -> Sequence[Action]:
            return [said.action for said in await self._read(request, episode, run, range(request.turn))]

        async def claim() -> bool:
            async with self._alone.connect() as connection:
                return await claim_step(connection, request)

        before = episode.turns[-2].step if request.turn else None
        return Past(
            make=run.make,
            task=task_of(run, request, episode),
            actions=actions,
            state=None if before is None else before.state,
            claim=claim,
            timeout_s=run.config.psrl.agentic_rl.step_timeout_s,
            idle_s=run.config.psrl.group_timeout_s,
        )

    async def _read(self, request: StepEnvironment, episode: Episode, run: Played, turns: Sequence[int]) -> list[Said]:
        async with self._alone.connect() as connection:
            sampled = await read_sampled(connection, request, turns)
        pairs = list(zip(turns, sampled, strict=True))
        return await self._in_thread(lambda: [read_turn(run, request, episode, turn, ids) for turn, ids in pairs])

    async def _render(self, run: Played, said: Said, step: Step) -> Sequence[int]:
        """Raises `UserCodeFailed` for messages that the chat template refuses."""
        template, answer = run.model.template, said.answer.message
        try:
            return await self._in_thread(lambda: template.appended(said.token_ids, answer, step.messages, run.tools))
        except ConversationRefused as refusal:
            raise UserCodeFailed(str(refusal)) from refusal

    async def _write(
        self, request: StepEnvironment, episode: Episode, step: StoredStep, ids: Sequence[int]
    ) -> StoredStep:
        """What the store then says: another attempt may have been first."""
        outcome = outcome_of([turn.step for turn in episode.turns[:-1] if turn.step is not None], step)
        async with self._store.begin() as connection:
            if await write_step(connection, request, step, outcome, ids if outcome is None else ()):
                return step
        self._keeper.overtaken(_key(request))
        async with self._alone.connect() as connection:
            stored = (await read_episode(connection, request)).turns[-1].step
        assert stored is not None
        return stored

    async def _of_run(self, workflow_run_id: str, config: RunConfig) -> Played:
        """Loaded once per run; anew for one that was resumed, perhaps with a repaired environment."""
        return await self._played.get(workflow_run_id, lambda: self._load(config))

    async def _load(self, config: RunConfig) -> Played:
        # Not in the thread of texts, which is for all runs: code of the user's may block the one that it is in.
        make, tools = await asyncio.to_thread(loaded, config.psrl.agentic_rl)
        model = await self._in_thread(lambda: ChatModel.open(config))
        return Played(config, model, make, tools or None)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._text, work)


def _key(request: StepEnvironment) -> Key:
    return request.run_id, request.group_id, request.index
