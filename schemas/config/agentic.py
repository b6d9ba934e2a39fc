"""How episodes are played, and how conversations of agents become training data."""

import re
from enum import StrEnum
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from .base import Section
from .sandbox import SandboxLimits


class AgentLoop(StrEnum):
    """How an episode is played: one attempt at a prompt."""

    GENERATE_ONLY = "generate_only"
    """The policy answers the prompt, once."""
    MULTI_TURN = "multi_turn"
    """The policy and an environment take turns, until the environment is done or a limit is reached."""
    SESSION = "session"
    """An agent from outside converses with the policy over HTTP, in a session of its own."""


class ThinkingTemplate(StrEnum):
    """What to do with a chat template that renders earlier turns differently once a conversation goes on."""

    KEEP = "keep"
    """The context stays what the engine saw: the policy sees its own words, reasoning included."""
    FORK = "fork"
    """Every turn is a training sequence of its own, with the history as the template renders it."""
    REFUSE = "refuse"
    """Such a template is refused when it is opened."""


class BatchAggMode(StrEnum):
    """What one of several training sequences of an episode weighs in the loss."""

    TRAJECTORY = "trajectory"
    """Every training sequence weighs the same in the loss."""
    REQUEST = "request"
    """The training sequences of one episode share the weight of one."""


class TruncateSide(StrEnum):
    """Which part of a tool's long answer the model sees."""

    LEFT = "left"
    """Its beginning."""
    RIGHT = "right"
    """Its end."""
    MIDDLE = "middle"
    """Half of each: what is in the middle is left out."""


SECRET_NAME = re.compile(
    r"(?:^|_)(?:(?:API)?KEY|TOKEN|PAT|SECRETS?|PASS(?:WORD|WD)?|CREDENTIALS?)(?:_|$)", re.IGNORECASE
)
SECRET_VALUE = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
"""A URL with a password."""


class McpServer(Section):
    """A program that offers tools over its standard streams."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Variables of its environment, beside the few that every program needs. A configuration is stored and shown, so
    names that look like those of secrets are refused here."""
    env_from: tuple[str, ...] = ()
    """Names of variables that it gets with the values that the cpu workers have, which are stored nowhere: keys and
    passwords."""
    repeatable: bool = True
    """Whether calls of its tools may be made again when the process that keeps the environment is lost."""

    @field_validator("env")
    @classmethod
    def _holds_no_secret(cls, value: dict[str, str]) -> dict[str, str]:
        for name, content in value.items():
            if SECRET_NAME.search(name) or SECRET_VALUE.search(content):  # the value is not shown
                raise ValueError(
                    f"{name} looks like a secret, and a configuration is stored and shown; allowed: "
                    f"env_from: [{name}], with its value where `psrl up` is called"
                )
        return value

    @field_validator("env_from")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in value):
            raise ValueError("one of them is no name; allowed: names of environment variables, not their values")
        return value


class AgenticSection(Section):
    agent_loop: AgentLoop = AgentLoop.GENERATE_ONLY
    """`generate_only`: the policy answers each prompt once. `multi_turn`: it and `environment` take turns
    (docs/environments.md). `session`: an agent from outside, `agent` or `agent_command`, converses with it over HTTP
    (docs/sessions.md)."""
    environment: str = ""
    """Import path `package.module:Class` of an `Environment`, or `path/to/file.py:Class`; or `tools`, which runs what
    the model calls, and is done when it calls nothing. Required for multi_turn."""
    environment_kwargs: dict[str, Any] = {}
    """Arguments of the class, by name."""
    tools: tuple[str, ...] = ()
    """Of the environment `tools`: import paths of functions, sync or async. Type hints and docstring say what the model
    is told of them. `code_runner` is built in: it runs a Python program in a sandbox."""
    code_runner: SandboxLimits = SandboxLimits()
    """Limits of such a program."""
    mcp_servers: dict[str, McpServer] = {}
    """Of the environment `tools`: programs that offer tools by the Model Context Protocol, each under a name. Needs
    `pip install 'psrl[mcp]'`."""
    tool_timeout_s: float = Field(default=30, gt=0)
    """Time limit of one call; past it the model is told so. It counts against `step_timeout_s`, too."""
    max_parallel_calls: int = Field(default=1, ge=1)
    """Calls of one turn that run at the same time."""
    max_tool_response_length: int = Field(default=256, ge=1)
    """Characters of a tool's answer that the model sees."""
    tool_response_truncate_side: TruncateSide = TruncateSide.MIDDLE
    """Which part of a longer answer that is: its beginning (left), its end (right), or half of each (middle)."""
    max_turns: int = Field(default=8, ge=1)
    """Turns of the model; the environment answers the last one, too, and the trajectory is scored."""
    max_turn_tokens: int | None = Field(default=None, ge=1)
    """Tokens the model may sample in one turn; null: what is left of `data.max_response_length`."""
    step_timeout_s: float = Field(default=60, gt=0)
    """Time limit of one step of the environment, of its reset, and of its end."""
    step_max_attempts: int = Field(default=3, ge=1)
    """Tries of a step that fails or takes too long, each with the environment made anew as it was before. Then the
    trajectory fails; that of an environment that cannot be repeated fails at once."""
    trajectory_timeout_s: float | None = Field(default=None, gt=0)
    """Time limit of a trajectory, from the start of its group; past it the trajectory fails. Null: as long as its
    group, `psrl.group_timeout_s`."""
    agent: str | None = None
    """Import path `package.module:function`, or `path/to/file.py:function`, of the agent; sync or async, run in a
    process of its own. It gets the task (docs/sessions.md) and returns nothing, a number, which is its own reward, or a
    dict with `reward` and `info`."""
    agent_command: tuple[str, ...] = ()
    """The agent as a program with its arguments, in a fresh directory. The environment tells it `OPENAI_BASE_URL`,
    `OPENAI_API_KEY`, `PSRL_MODEL` and `PSRL_TASK`, the path of the task as JSON."""
    agent_timeout_s: float = Field(default=1800, gt=0)
    """Time limit of one run of the agent; then it is killed."""
    max_concurrent_agents: int = Field(default=16, ge=1)
    """Agents that a worker runs at the same time."""
    retry_limit: int = Field(default=1, ge=0)
    """How often an episode whose agent failed, ran out of time or said nothing is begun anew before it counts as
    failed."""
    refill_failure_threshold: int = Field(default=32, ge=1)
    """Failed groups in a row after which the run stops and names the reasons, whatever the agent loop. Groups that a
    filter drops do not count."""
    thinking_template: ThinkingTemplate = ThinkingTemplate.KEEP
    tool_parser: str | None = None
    """vLLM's name of the parser that finds tool calls in what the model says, such as `hermes`; null: it calls none."""
    reasoning_parser: str | None = None
    """vLLM's name of the parser that tells reasoning from the answer; null: all of it is the answer."""
    batch_agg_mode: BatchAggMode = BatchAggMode.TRAJECTORY
    session_idle_timeout_s: float = Field(default=1800, gt=0)
    """A session without a turn for so long is closed: its agent has gone. The whole session has
    `psrl.group_timeout_s`."""
    session_hang_timeout_s: float = Field(default=600, gt=0)
    """A hung session continues by itself after this long."""
    session_drain_timeout_s: float = Field(default=60, gt=0)
    """How long turns in flight may take to end when their session is closed; then they are cut."""

    @model_validator(mode="after")
    def _names_one_agent(self) -> Self:
        given = [name for name, value in (("agent", self.agent), ("agent_command", self.agent_command)) if value]
        if self.agent_loop is AgentLoop.SESSION and len(given) != 1:
            found = "both are given" if given else "neither is given"
            raise ValueError(
                "psrl.agentic_rl.agent_loop=session needs one of psrl.agentic_rl.agent (package.module:function) and "
                f"psrl.agentic_rl.agent_command (a program with its arguments); {found}"
            )
        return self
