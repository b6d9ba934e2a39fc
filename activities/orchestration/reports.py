"""Group reports on their way to their runs: those of one run that come close together travel in one signal, because
each signal costs the run a workflow task. Used by `GroupActivities`.

Promises: a report that comes alone is sent at once; `tell` returns when the server has taken the signal, and raises
what the signal raised; a caller that is cancelled takes nothing from the others.
"""

import asyncio
import logging
from collections.abc import Sequence

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from ...schemas.messages.run import GroupReport, GroupReports

log = logging.getLogger(__name__)

GATHER_S = 0.1
"""Between two signals to a run: what comes meanwhile goes with the second."""

Waiting = list[tuple[GroupReport, asyncio.Future[None]]]


class Reports:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[str, Waiting] = {}
        """By the workflow id of the run."""
        self._senders: dict[str, asyncio.Task[None]] = {}

    async def tell(self, run: str, report: GroupReport) -> None:
        """A run that is gone needs no report."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run, []).append((report, done))
        if run not in self._senders:
            self._senders[run] = asyncio.create_task(self._work(run))
        await done

    async def _work(self, run: str) -> None:
        try:
            while waiting := self._waiting.pop(run, None):
                await self._settle(run, waiting)
                await asyncio.sleep(GATHER_S)
        finally:
            del self._senders[run]

    async def _settle(self, run: str, waiting: Waiting) -> None:
        """Every caller gets its answer, whatever happens."""
        try:
            await self._signal(run, [report for report, _ in waiting])
        except Exception as error:  # noqa: BLE001 - the callers own the error, this task serves all of them
            for _, done in waiting:
                if not done.done():
                    done.set_exception(error)
            return
        for _, done in waiting:
            if not done.done():
                done.set_result(None)

    async def _signal(self, run: str, reports: Sequence[GroupReport]) -> None:
        try:
            await self._client.get_workflow_handle(run).signal("group_reports", GroupReports(reports=tuple(reports)))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            log.warning("run %s took no report: %s", run, error)
