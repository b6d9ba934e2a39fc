"""From what is stored of an episode to what its environment is told, and from its answers to the episode's outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...schemas.config import RunConfig
from ...schemas.messages.data import Purpose
from ...schemas.messages.environments import StepEnvironment, StoredStep
from ...schemas.messages.episodes import EpisodeOutcome, TerminateReason
from ...schemas.messages.rewards import PROMPT_MESSAGES
from ...schemas.messages.rollout import SegmentEnd
from ...schemas.seeds import group_seed
from ..capture.message import Answer
from ..capture.messages import read_messages
from ..capture.model import ChatModel
from .environment import Action, Step, Task, ToolCall
from .load import Make
from .stored import Episode


@dataclass(frozen=True)
class Played:
    """What the steps of a run share."""

    config: RunConfig
    model: ChatModel
    make: Make
    tools: Sequence[Mapping[str, Any]] | None
    """None: the policy has none to call."""


@dataclass(frozen=True)
class Said:
    """A turn of the policy, read."""

    token_ids: Sequence[int]
    answer: Answer
    action: Action


def read_turn(run: Played, request: StepEnvironment, episode: Episode, turn: int, token_ids: Sequence[int]) -> Said:
    """The same for the same tokens, ids of tool calls included."""
    end = episode.turns[turn].end
    key = f"{request.run_id}-{request.group_id}-{request.index}-{turn}"
    answer = run.model.reader.read(token_ids, end, key, run.tools)
    (said,) = read_messages([answer.message])
    action = Action(
        turn=turn,
        text=said.text,
        calls=tuple(ToolCall(call.id, call.name, call.arguments) for call in said.calls),
        reasoning=said.reasoning,
        truncated=end is SegmentEnd.LENGTH,
    )
    return Said(token_ids, answer, action)


def task_of(run: Played, request: StepEnvironment, episode: Episode) -> Task:
    extra = dict(episode.extra)
    return Task(
        prompt_text=episode.prompt_text,
        messages=extra.pop(PROMPT_MESSAGES, None),
        data_source=episode.data_source,
        ground_truth=episode.ground_truth,
        extra=extra,
        seed=group_seed(run.config.trainer.seed, request.group_id),
        validation=episode.purpose == Purpose.VALIDATION,
    )


def ended_by(step: Step, turn: int, max_turns: int) -> TerminateReason | None:
    """None: there may be another turn, if there is room for it."""
    if step.done:
        return TerminateReason.FINISHED
    return TerminateReason.MAX_TURNS_EXCEEDED if turn + 1 >= max_turns else None


def room_after(run: Played, episode: Episode, token_ids: Sequence[int]) -> int:
    """What the next turn may sample behind these tokens of the environment; nothing, or less, ends the episode."""
    left = run.config.data.max_response_length - episode.response_tokens - len(token_ids)
    return min(left, run.config.psrl.agentic_rl.max_turn_tokens or left)


def outcome_of(earlier: Sequence[StoredStep], last: StoredStep) -> EpisodeOutcome | None:
    """None: it goes on."""
    if last.ended is None:
        return None
    steps = [*earlier, last]
    rewards = [step.reward for step in steps if step.reward is not None]
    info = {name: value for step in steps for name, value in step.info.items()}
    return EpisodeOutcome(ended=last.ended, reward=sum(rewards) if rewards else None, info=info)
