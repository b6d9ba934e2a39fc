"""Route calls that wait for room.

Promise: when room appears, the calls with the oldest version tag are served first, then the oldest groups: they have
the earliest deadlines. A new call never overtakes a waiting one that could use the same room.
"""

import asyncio
import heapq
import itertools
import time

from ...schemas.messages.rollout import RouteRequest, RouteResult
from .fleet import Fleet


class RouteQueue:
    """Holds calls until the fleet changes. `changed()` is called after every report."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._order = itertools.count()
        self._waiting: list[tuple[int, str, int, RouteRequest, asyncio.Future[RouteResult]]] = []

    async def route(self, request: RouteRequest) -> RouteResult:
        """Placements as soon as at least one is possible; after `wait_s` none, with the reason."""
        answer: asyncio.Future[RouteResult] = asyncio.get_running_loop().create_future()
        entry = (request.version_tag, str(request.group_id), next(self._order), request, answer)
        heapq.heappush(self._waiting, entry)
        self.changed()
        try:
            async with asyncio.timeout(max(0.0, request.wait_s)):
                return await answer
        except TimeoutError:
            return self._fleet.place(request, time.monotonic())
        finally:
            answer.cancel()

    def changed(self) -> None:
        """Serve whoever can be served now, oldest first; the others stay."""
        now = time.monotonic()
        still: list[tuple[int, str, int, RouteRequest, asyncio.Future[RouteResult]]] = []
        while self._waiting:
            entry = heapq.heappop(self._waiting)
            request, answer = entry[3], entry[4]
            if answer.done():
                continue
            result = self._fleet.place(request, now)
            if result.placements or not request.indices:
                answer.set_result(result)
            else:
                still.append(entry)
        self._waiting = still  # sorted, hence a heap
