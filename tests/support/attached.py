"""The hosts' side of the coordinator, by hand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType

from psrl.schemas.errors import PsrlError
from psrl.schemas.messages.coordination import HostCommand
from psrl.schemas.messages.rollout import InstanceReport
from psrl.workers.coordinator.client import CoordinatorClient


class ReportingClient(CoordinatorClient):
    """A client that also speaks for hosts, all on one stream."""

    def __init__(self, address: str, stack_id: str = "") -> None:
        super().__init__(address, stack_id)
        self.commands: asyncio.Queue[HostCommand] = asyncio.Queue()
        self._reports: asyncio.Queue[InstanceReport] = asyncio.Queue()
        self._stream: asyncio.Task[None] | None = None

    async def report(self, report: InstanceReport) -> None:
        """Returns when the coordinator has taken it."""
        if self._stream is None:
            self._stream = asyncio.create_task(self._keep())
        self._reports.put_nowait(report)
        async with asyncio.timeout(60):
            while not any(one.report == report for one in (await self.fleet()).instances):
                if self._stream.done():
                    self._stream.result()

    @property
    def stream(self) -> asyncio.Task[None]:
        assert self._stream is not None
        return self._stream

    async def detach(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            with suppress(asyncio.CancelledError, PsrlError):
                await self._stream
            self._stream = None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.detach()
        await super().__aexit__(kind, error, trace)

    async def _keep(self) -> None:
        async for command in self.attach(self._queued()):
            self.commands.put_nowait(command)

    async def _queued(self) -> AsyncIterator[InstanceReport]:
        while True:
            yield await self._reports.get()
