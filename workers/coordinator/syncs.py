"""Instances that are behind and wait for a good moment to sync.

Promise: a call is answered when the run's policy says so, at the latest after `wait_s`; it is judged anew within
`CHECK_S` of every change of the fleet or the queue. Nothing is remembered of a call that is over.
"""

import asyncio
import time
from contextlib import suppress

from ...schemas.messages.coordination import SyncAnswer, SyncRequest
from .policies.sync.contract import SyncVerdict
from .policies.sync.registry import sync_policy
from .view import CHECK_S, View


class Syncs:
    def __init__(self, view: View) -> None:
        self._view = view
        self._waiting: set[asyncio.Event] = set()

    async def due(self, request: SyncRequest) -> SyncAnswer:
        policy, until = sync_policy(request.strategy), time.monotonic() + request.wait_s
        while True:
            judged_at = time.monotonic()
            snapshot = self._view.sync(request, judged_at)
            if snapshot is None:
                verdict = SyncVerdict(False, f"{request.instance} has not reported")
            elif not snapshot.own.serving:
                verdict = SyncVerdict(False, f"{request.instance} does not serve")
            else:
                verdict = policy(snapshot)
            left_s = until - time.monotonic()
            if verdict.due or left_s <= 0:
                return SyncAnswer(due=verdict.due, reason=verdict.reason)
            await self._next_change(left_s)
            await asyncio.sleep(judged_at + CHECK_S - time.monotonic())

    def changed(self) -> None:
        for event in self._waiting:
            event.set()

    async def _next_change(self, patience_s: float) -> None:
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), patience_s)
        finally:
            self._waiting.discard(event)
