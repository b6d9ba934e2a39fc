"""Environments for tests. What happened to them is written down in `events`."""

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from psrl.activities.environments.environment import Action, Environment, Step, Task, user_says

events: list[str] = []
released = threading.Event()
"""What `Slow` waits for."""
failures: list[str] = []
"""Each is raised once by the next steps."""


class Counting(Environment):
    """Adds up the lengths of what the policy says; done when it says `!`."""

    def __init__(self) -> None:
        self.total, self.playing = 0, False

    async def reset(self, task: Task) -> None:
        self.playing = True
        events.append(f"reset {task.ground_truth}")

    async def step(self, action: Action) -> Step:
        events.append(f"step {action.turn} {action.text}")
        if failures:
            raise ValueError(failures.pop())
        self.total += len(action.text)
        return Step(user_says(f"={self.total}"), reward=0.5, done="!" in action.text, info={"total": self.total})

    async def close(self) -> None:
        if self.playing:
            events.append("close")


class Saving(Counting):
    """The same, with a state that is saved instead of steps that are repeated."""

    async def save(self) -> Any:
        return {"total": self.total}

    async def restore(self, task: Task, state: Any) -> None:
        events.append(f"restore {state}")
        self.playing = True
        self.total = state["total"]


class Once(Counting):
    """The same, for what must not be repeated."""

    repeatable = False


async def slow() -> None:
    """Returns when a step of `Slow` is under way; it may be on another event loop."""
    while "slow" not in events:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


class Slow(Counting):
    async def step(self, action: Action) -> Step:
        events.append("slow")
        while not released.is_set():  # noqa: ASYNC110  (set on another event loop)
            await asyncio.sleep(0.01)
        return await super().step(action)


class Blocking(Counting):
    """Holds the event loop of all."""

    async def step(self, action: Action) -> Step:
        if action.text == "block":
            time.sleep(3)  # noqa: ASYNC251  (as users do)
        return await super().step(action)


class Odd(Counting):
    """Returns what it is told to."""

    def __init__(self, returned: str) -> None:
        super().__init__()
        self._returned = returned

    async def step(self, action: Action) -> Any:
        return {
            "nothing": None,
            "text": Step("7"),  # type: ignore[arg-type]
            "nan": Step(reward=float("nan")),
            "assistant": Step([{"role": "assistant", "content": "I"}]),
            "no JSON": Step(info={"x": {1}}),
            "NUL": Step(info={"x": "a\0b"}),
        }[self._returned]


class WithTools(Counting):
    async def tools(self) -> Sequence[Mapping[str, Any]]:
        return [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


made: list[str] = []
"""How often `Made` was."""


class Made(Counting):
    """The constructor blocks while `released` is not set, but for as many as `made` had room for."""

    def __init__(self, at_once: int) -> None:
        super().__init__()
        made.append("Made")
        if len(made) > at_once:
            released.wait()


class NoStep(Environment):
    async def reset(self, task: Task) -> None: ...


class Sync(Environment):
    def reset(self, task: Task) -> None: ...  # type: ignore[override]

    async def step(self, action: Action) -> Step:
        return Step()


def no_class() -> None:
    """Not an environment."""
