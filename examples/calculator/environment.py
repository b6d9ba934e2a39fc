"""The environment of the calculator example: `examples.calculator.environment:Calculator` in a run's configuration.

The policy is asked for a sum that it cannot know, for example `34+58=`. What it says after a `?` is worked out for it,
and it gets the result as a tool's message; anything else is its answer, right or wrong, and the episode is over:

    user 34+58=   policy ?34+58   tool 92   policy 92        1.0
    user 34+58=   policy 71                                  0.0
"""

from __future__ import annotations

import re

from psrl.activities.environments.environment import Action, Environment, Step, Task

ASK = "?"
EXPRESSION = re.compile(r"([0-9]{1,6})\+([0-9]{1,6})")


def work_out(expression: str) -> str:
    """The sum of two plain numbers; a message for anything else."""
    found = EXPRESSION.fullmatch(expression)
    return str(int(found[1]) + int(found[2])) if found else "error"


class Calculator(Environment):
    async def reset(self, task: Task) -> None:
        self._expected = str(task.ground_truth)
        self._asked = 0

    async def step(self, action: Action) -> Step:
        said = action.text.strip()
        if said.startswith(ASK):
            self._asked += 1
            return Step([{"role": "tool", "content": work_out(said.removeprefix(ASK))}])
        return Step(reward=float(said == self._expected), done=True, info={"asked": self._asked})
