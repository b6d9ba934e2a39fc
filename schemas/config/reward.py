"""`reward.*`: how a finished trajectory is scored."""

import re
from enum import StrEnum
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from ..errors import nearest
from .algorithm import REWARD_ITSELF
from .base import Section
from .built_in_rewards import OPTIONS, faults

PROCESS_STARTS_WITHIN_S = 120
"""For an interpreter and the imports of the user's module: numerical libraries take a while on a busy machine."""


NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}"


def is_file(place: str) -> bool:
    """Whether what stands before the function's name is a path to a file, not a module."""
    return place.endswith(".py") or "/" in place


class RewardScope(StrEnum):
    """What one call of the reward function sees."""

    AUTO = "auto"
    """`group` for a function that takes lists by its signature, `trajectory` for others."""
    TRAJECTORY = "trajectory"
    """One sample; returns one number, or a dict that has `score` and further numbers by name. A function that takes
    lists gets lists of one."""
    GROUP = "group"
    """All samples of the group, in order; returns a list with a number or dict for each. Runs when the whole group has
    finished."""


class RewardIsolation(StrEnum):
    """Where the reward function and a group filter of your own run."""

    AUTO = "auto"
    """In threads; in processes when the function, or what it calls, uses `signal.alarm`, starts processes or changes
    what all threads share, such as the working directory, and once a call has ended the process it ran in."""
    THREAD = "thread"
    """In threads of the worker: cheapest, and many at a time may wait for a service."""
    PROCESS = "process"
    """In processes that do nothing else. One past its time limit is killed, one that dies costs the call it was in."""


class WeightedReward(Section):
    """One of several reward functions."""

    function: str
    """As `reward.function`."""
    weight: float = Field(default=1, allow_inf_nan=False)
    """Its score counts times this. At 0 it is only stored and reported."""
    kwargs: dict[str, Any] = {}
    """As `reward.kwargs`."""
    scope: RewardScope = RewardScope.AUTO
    """As `reward.scope`. Where it is `group` for one of them, all wait for the whole group."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Time limit of one call; null for `reward.timeout_s`."""
    max_attempts: int | None = Field(default=None, ge=1)
    """Calls before the trajectory fails; null for `reward.max_attempts`."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Its calls at the same time per worker, also where `reward.processes` would allow more; null for
    `reward.max_concurrency`."""


class RewardSection(Section):
    function: str = ""
    """Import path `package.module:function`, or `path/to/file.py:function`; sync or async. Required, unless there are
    `reward.functions`, or an `agent_loop` whose environment or agent says the reward itself. Its signature says how it
    is called (docs/extending.md). It returns a finite number, or a dict that has `score`: the numbers and booleans
    beside it are stored with the trajectory, their means are reported per step, and a group filter can compare them;
    what is no number is left out. `code_tests`, `llm_judge`, `overlong` and `outcome` are built in
    (docs/rewards.md)."""
    functions: dict[str, WeightedReward] = {}
    """Several functions in place of one, each under a name of its own. The reward is the sum of their scores times
    their weights; where one fails, the trajectory fails. Each score is stored as the number `name`, what the function
    returns beside it as `name/number`."""
    kwargs: dict[str, Any] = {}
    """Further arguments of the function, by name."""
    scope: RewardScope = RewardScope.AUTO
    timeout_s: float = Field(default=60, gt=0)
    """Time limit of one call."""
    max_attempts: int = Field(default=3, ge=1)
    """Calls before the trajectory fails. A failure is never 0.0."""
    coalesce: bool = True
    """Score trajectories of a group that finished meanwhile in one task. Turn off for slow rewards, so that
    none waits for a sibling's."""
    max_concurrency: int = Field(default=64, ge=1)
    """Calls of the function at the same time per worker, in threads."""
    isolation: RewardIsolation = RewardIsolation.AUTO
    processes: int = Field(default=4, ge=1)
    """Calls at the same time per worker, in processes; they are started when they are needed."""
    memory_gb: float | None = Field(default=4, gt=0)
    """What one of these processes may allocate beyond its imports; null for no limit."""

    @property
    def parts(self) -> tuple["RewardPart", ...]:
        """Its functions; none for a reward that needs none."""
        if self.function:
            return (RewardPart("", "reward", 1.0, self),)
        return tuple(
            RewardPart(name, f"reward.functions.{name}", one.weight, self._of(one))
            for name, one in self.functions.items()
        )

    @property
    def described(self) -> str:
        """For people."""
        return self.function or ", ".join(f"{name} ({one.function})" for name, one in self.functions.items())

    @property
    def waits_for_group(self) -> bool:
        """The whole group is scored at once."""
        return any(part.limits.scope is RewardScope.GROUP for part in self.parts)

    @property
    def room(self) -> int:
        """Calls at the same time, at least."""
        if self.isolation is RewardIsolation.PROCESS:
            return self.processes
        if self.isolation is RewardIsolation.THREAD:
            return self.max_concurrency
        return min(self.processes, self.max_concurrency)

    @property
    def call_s(self) -> float:
        """What one call may take, with the start of a process."""
        return self.timeout_s + (0 if self.isolation is RewardIsolation.THREAD else PROCESS_STARTS_WITHIN_S)

    def _of(self, one: WeightedReward) -> "RewardSection":
        """That function as if it were the only one."""
        own = {
            "function": one.function,
            "functions": {},
            "kwargs": one.kwargs,
            "scope": one.scope,
            "timeout_s": one.timeout_s or self.timeout_s,
            "max_attempts": one.max_attempts or self.max_attempts,
            "max_concurrency": one.max_concurrency or self.max_concurrency,
            "processes": min(self.processes, one.max_concurrency or self.processes),
        }
        return self.model_copy(update=own)

    @model_validator(mode="after")
    def _one_or_several(self) -> Self:
        if not self.functions:
            return self
        for key in ("function", "kwargs", "scope"):
            if key in self.model_fields_set and (value := getattr(self, key)) != type(self).model_fields[key].default:
                raise ValueError(
                    f"reward.{key}={value!r} beside reward.functions; allowed: one of both, or "
                    f"reward.functions.NAME.{key}"
                )
        for name in self.functions:
            if not re.fullmatch(NAME, name) or name in REWARD_ITSELF:
                raise ValueError(
                    f"reward.functions.{name}: it is stored under that name; allowed: letters, digits, _ and -, at "
                    f"most 50, but not {', '.join(REWARD_ITSELF)}, which is the whole"
                )
        return self

    @model_validator(mode="after")
    def _functions_can_be(self) -> Self:
        found = [fault for part in self.parts for fault in part.faults()]
        if found:
            raise ValueError("\n".join(found))
        return self


class RewardPart(NamedTuple):
    """One function of a run's reward."""

    name: str
    """Empty for the only one."""
    key: str
    """Where it stands in the configuration."""
    weight: float
    limits: RewardSection
    """As if it were the only one."""

    @property
    def built_in(self) -> bool:
        return self.limits.function in OPTIONS

    def faults(self) -> list[str]:
        """What is known to be wrong before it is loaded, one line each."""
        function = self.limits.function
        if not self.built_in:
            if ":" in function:
                return []
            known = ", ".join(OPTIONS)
            return [
                f"{self.key}.function={function!r} is no reward{nearest(function, OPTIONS)}; allowed: "
                f"package.module:function, path/to/file.py:function, or {known}"
            ]
        if self.limits.scope is RewardScope.GROUP:
            return [f"{self.key}.scope=group, but {function} takes one sample; allowed: auto, trajectory"]
        return faults(self.key, function, self.limits.kwargs, self.limits.timeout_s)
