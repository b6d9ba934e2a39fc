"""What an environment is: a class of the user's, named by `psrl.agentic_rl.environment`.

One object plays with one trajectory: `reset`, then one `step` per turn of the policy, then `close`, on every path. What
the policy sees first is the prompt of its group, the same for all members: the data say it, and `reset` adds nothing.
All methods of all environments run on one event loop beside the worker's own: they await what is slow.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]
"""In the form of the chat completions protocol."""


@dataclass(frozen=True)
class Task:
    """The row of the data that a trajectory is played for."""

    prompt_text: str
    messages: list[dict[str, Any]] | None
    """Of a prompt that is a chat."""
    data_source: str
    ground_truth: Any
    extra: dict[str, Any]
    """Every other column."""
    seed: int
    """The same for all trajectories of a group, whenever it is asked for."""
    validation: bool = False


@dataclass(frozen=True)
class ToolCall:
    """A call as vLLM's parser found it in what the policy said."""

    id: str
    name: str
    arguments: Any
    """An object; the text as it is where the policy wrote no JSON."""


@dataclass(frozen=True)
class Action:
    """What the policy said in one turn."""

    turn: int
    """From 0."""
    text: str
    """Without reasoning and calls, where parsers find them."""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    truncated: bool = False
    """The token budget cut it."""


@dataclass(frozen=True)
class Step:
    """What the environment answers."""

    messages: Sequence[Message] = ()
    """What the policy sees before its next turn: of a user, or of tools; ignored when it is done."""
    reward: float | None = None
    """The sum of all that are given is the episode's (`RewardSample.outcome_reward`)."""
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    """JSON for the reward function: that of later steps replaces what earlier ones said under the same name."""


class Environment(ABC):
    """The class is made once per trajectory, with `psrl.agentic_rl.environment_kwargs`."""

    repeatable: bool = True
    """Whether steps may be done again. When the process that keeps an environment dies, it is made anew in another: by
    `restore`, where the class has one, or by `reset` and every earlier step; and the step that was under way is
    repeated. One that is not repeatable fails its trajectory instead, unless only `restore` is needed."""

    async def tools(self) -> Sequence[Mapping[str, Any]]:
        """Schemas of what the policy may call, for the chat template. Asked once for all trajectories of a run, of an
        object that plays none."""
        return ()

    @abstractmethod
    async def reset(self, task: Task) -> None:
        """Begin."""

    @abstractmethod
    async def step(self, action: Action) -> Step:
        """Answer a turn of the policy. What it raises is a failure of the environment, not of the policy."""

    async def close(self) -> None:  # noqa: B027  (most hold nothing)
        """Give back whatever it holds. Called once, also when nobody needs the trajectory any more."""

    async def save(self) -> Any:
        """For `restore`: what it is after a step, as JSON. Called after each."""
        raise NotImplementedError

    async def restore(self, task: Task, state: Any) -> None:
        """Instead of `reset`: be as after the step at which `save` returned this."""
        raise NotImplementedError


def user_says(text: str) -> tuple[Message, ...]:
    """The commonest answer."""
    return ({"role": "user", "content": text},)
