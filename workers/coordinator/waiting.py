"""Route calls that wait for room, run by run.

Promises: when room appears, calls are served in the run's order (`request_sort_indicator`), a validation round's before
those of training, with `enable_multi_priority_queue` those with the oldest tag before all; a new call never overtakes a
waiting one that could use the same room. A call that finds no instance stands for all behind it with its tag or a newer
one, since whatever they may go to it may go to as well: looking costs a question for each version, however many wait.
One whose group is pinned to an instance stands for itself alone.
"""

import asyncio
import heapq
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...schemas.config import RequestOrder
from ...schemas.ids import is_validation
from ...schemas.messages.rollout import RouteRequest, RouteResult
from .fleet import Fleet

Rank = tuple[int, ...]


@dataclass(order=True, slots=True)
class _Waiting:
    rank: Rank
    number: int
    """Of calls of one rank the first to come is the first to be served."""
    request: RouteRequest = field(compare=False)
    answer: asyncio.Future[RouteResult] = field(compare=False)


@dataclass(slots=True)
class _Level:
    """Calls with one version tag."""

    heap: list[_Waiting] = field(default_factory=list)
    over: int = 0
    """Of them, how many wait no longer."""

    def head(self) -> _Waiting | None:
        while self.heap and self.heap[0].answer.done():
            heapq.heappop(self.heap)
            self.over -= 1
        return self.heap[0] if self.heap else None

    def compact(self) -> None:
        """Callers that gave up are not kept for those before them."""
        if self.over > len(self.heap) // 2:
            self.heap = [one for one in self.heap if not one.answer.done()]
            heapq.heapify(self.heap)
            self.over = 0


class RouteQueue:
    """Holds calls until the fleet changes. `changed()` is called after every report."""

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet, self._clock = fleet, clock
        self._numbers = itertools.count()
        self._runs: dict[str, dict[int, _Level]] = defaultdict(dict)

    async def route(self, request: RouteRequest) -> RouteResult:
        """Placements as soon as at least one is possible; after `wait_s` none, with the reason."""
        answer: asyncio.Future[RouteResult] = asyncio.get_running_loop().create_future()
        level = self._runs[request.run_id].setdefault(request.version_tag, _Level())
        heapq.heappush(level.heap, _Waiting(rank(request), next(self._numbers), request, answer))
        try:
            self.changed(request.run_id)
            async with asyncio.timeout(max(0.0, request.wait_s)):
                return await answer
        except TimeoutError:
            return RouteResult(placements=(), reason=self._fleet.why_not(request, self._clock()))
        finally:
            answer.cancel()
            level.over += 1
            level.compact()
            self._forget_empty(request.run_id)

    def changed(self, run_id: str | None = None) -> None:
        """Serve whoever can be served now, of one run or of all, in order; the others stay."""
        now = self._clock()
        for name in [run_id] if run_id is not None else list(self._runs):
            if name in self._runs:
                self._serve(self._runs[name], now)

    def waiting(self) -> Iterator[tuple[str, int, int]]:
        """Run, version tag, and how many calls wait."""
        for run_id, levels in self._runs.items():
            for tag, level in levels.items():
                if count := sum(not one.answer.done() for one in level.heap):
                    yield run_id, tag, count

    def _serve(self, levels: dict[int, _Level], now: float) -> None:
        open_tags, aside = set(levels), list[_Waiting]()
        while heads := [(tag, head) for tag in open_tags if (head := levels[tag].head()) is not None]:
            tag, first = min(heads, key=lambda pair: _turn(*pair))
            result = self._fleet.place(first.request, now)
            if result.placements or not first.request.indices:
                first.answer.set_result(result)
            elif self._fleet.is_pinned(first.request):
                aside.append(heapq.heappop(levels[tag].heap))
            else:
                open_tags = {other for other in open_tags if other < tag}
        for one in aside:
            heapq.heappush(levels[one.request.version_tag].heap, one)

    def _forget_empty(self, run_id: str) -> None:
        levels = self._runs[run_id]
        for tag in [tag for tag, level in levels.items() if not level.heap]:
            del levels[tag]
        if not levels:
            del self._runs[run_id]


def _turn(tag: int, head: _Waiting) -> tuple[int, Rank, int]:
    by_tag = head.request.strategy.enable_multi_priority_queue
    return (tag if by_tag else 0, head.rank, head.number)


def rank(request: RouteRequest) -> Rank:
    """Smaller is served first. The simulator's queue asks, too. A validation round comes before training: it is short,
    and by ids or lengths alone it might wait for as long as anything is trained."""
    return (0 if is_validation(request.group_id) else 1, *_among_its_kind(request))


def _among_its_kind(request: RouteRequest) -> Rank:
    match request.strategy.request_sort_indicator:
        case RequestOrder.SMALL_ID:
            return tuple(map(ord, request.group_id))
        case RequestOrder.LARGE_ID:
            # After its digits comes what is larger than any of them, so that of `1` and `12` the longer is first.
            return (*(-ord(character) for character in request.group_id), 1)
        case RequestOrder.SHORT_LENGTH:
            return (max(request.tokens, default=0),)
        case RequestOrder.LONG_LENGTH:
            return (-max(request.tokens, default=0),)
