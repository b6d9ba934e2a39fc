"""How conversations of agents become training data."""

from enum import StrEnum

from pydantic import Field

from .base import Section


class ThinkingTemplate(StrEnum):
    """What to do with a chat template that renders earlier turns differently once a conversation goes on."""

    KEEP = "keep"
    """The context stays what the engine saw: the policy sees its own words, reasoning included."""
    FORK = "fork"
    """Every turn is a training sequence of its own, with the history as the template renders it."""
    REFUSE = "refuse"
    """Such a template is refused when it is opened."""


class AgenticSection(Section):
    thinking_template: ThinkingTemplate = ThinkingTemplate.KEEP
    tool_parser: str | None = None
    """vLLM's name of the parser that finds tool calls in what the model says, such as `hermes`; null: it calls none."""
    reasoning_parser: str | None = None
    """vLLM's name of the parser that tells reasoning from the answer; null: all of it is the answer."""
    session_idle_timeout_s: float = Field(default=1800, gt=0)
    """A session without a turn for so long is closed: its agent has gone. The whole session has
    `psrl.group_timeout_s`."""
    session_hang_timeout_s: float = Field(default=600, gt=0)
    """A hung session continues by itself after this long."""
    session_drain_timeout_s: float = Field(default=60, gt=0)
    """How long turns in flight may take to end when their session is closed; then they are cut."""
