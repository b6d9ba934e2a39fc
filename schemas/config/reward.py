"""`reward.*`: how a finished trajectory is scored."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from .base import Section

PROCESS_STARTS_WITHIN_S = 120
"""For an interpreter and the imports of the user's module: numerical libraries take a while on a busy machine."""


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


class RewardSection(Section):
    function: str = ""
    """Import path `package.module:function`, or `path/to/file.py:function`; sync or async. Required. Its signature says
    how it is called (docs/extending.md). It returns a finite number, or a dict that has `score`: the numbers and
    booleans beside it are stored with the trajectory, their means are reported per step, and a group filter can compare
    them; what is no number is left out."""
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
