"""Messages of agents from outside: an episode that one is to play, and what an agent itself sees of it."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from ..ids import GroupId, RunId
from .base import Message, Said
from .episodes import TerminateReason


class AgentTask(BaseModel):
    """What an agent is given: a program as JSON, a function as its argument."""

    model_config = ConfigDict(frozen=True)

    base_url: str
    """Of its session, for clients of OpenAI's protocol. Those of Anthropic's take it without `/v1`."""
    api_key: str
    """Opens this session and no other."""
    model: str
    prompt: str
    """The data's prompt as rendered by the chat template; of a prompt that is text, the text."""
    messages: list[dict[str, Any]] | None = None
    """The prompt's chat messages; None for a prompt that the data have as text."""
    extra: dict[str, Any]
    """Every other column of the data row, but for the ground truth."""
    seed: int
    """Of this attempt: for what the agent itself draws."""
    session_id: str


class RunAgent(Message):
    """Let the run's agent play one episode of a group, in a new session. Repeated, an episode that ended well is
    answered from the store; what an earlier attempt has left is set aside."""

    run_id: RunId
    group_id: GroupId
    episode: int
    episodes: int
    """Of the group (N')."""


class AgentRun(Message):
    """How the episode ended, its session closed."""

    ended: TerminateReason
    turns: int = 0
    """Of all its branches, as are the next two."""
    tokens: int = 0
    segments: int = 0
    versions: tuple[int, ...] = ()
    """Ascending."""
    error: Said = ""
    """What the agent died of, or was killed for."""
