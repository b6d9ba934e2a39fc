"""Virtual time: what happens when, in order; what is due at the same moment in the order in which it was asked for."""

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the run began."""
        self._due: list[tuple[float, int, Action]] = []
        self._order = count()

    def at(self, when: float, action: Action) -> None:
        """Never in the past: what is late happens now."""
        heapq.heappush(self._due, (max(when, self.now), next(self._order), action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def step(self) -> bool:
        """Go to the next moment and do one thing of it. False: nothing is due any more."""
        if not self._due:
            return False
        self.now, _, action = heapq.heappop(self._due)
        action()
        return True

    @property
    def idle_now(self) -> bool:
        """Nothing more is due at this moment."""
        return not self._due or self._due[0][0] > self.now
