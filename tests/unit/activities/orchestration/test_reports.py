"""Group reports on their way to their runs."""

import asyncio
from collections.abc import Callable
from unittest.mock import AsyncMock, MagicMock

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from psrl.activities.orchestration import reports
from psrl.activities.orchestration.reports import Reports
from psrl.schemas.ids import GroupId
from psrl.schemas.messages.run import GroupOutcome, GroupReport, GroupReports

Answer = Callable[[str], None]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "GATHER_S", 0.0)


class Server:
    """Takes signals once it is `open`; `answer` may raise."""

    def __init__(self, answer: Answer = lambda run: None) -> None:
        self.open, self.asked, self._answer = asyncio.Event(), asyncio.Event(), answer
        self.signals: list[tuple[str, list[str]]] = []

    def client(self) -> Client:
        client = MagicMock(Client)
        client.get_workflow_handle.side_effect = lambda run: MagicMock(signal=AsyncMock(side_effect=self._of(run)))
        return client

    def _of(self, run: str) -> Callable[[str, GroupReports], object]:
        async def signal(name: str, told: GroupReports) -> None:
            assert name == "group_reports"
            self.signals.append((run, [report.group_id for report in told.reports]))
            self.asked.set()
            await self.open.wait()
            self._answer(run)

        return signal


def report(group: str) -> GroupReport:
    return GroupReport(group_id=GroupId(group), outcome=GroupOutcome.COMPLETE)


async def begin(telling: Reports, run: str, group: str) -> "asyncio.Task[None]":
    """The report waits or is on its way when this returns."""
    task = asyncio.create_task(telling.tell(run, report(group)))
    await asyncio.sleep(0)
    return task


async def test_reports_that_come_while_a_signal_is_on_its_way_travel_in_the_next_one() -> None:
    server = Server()
    telling = Reports(server.client())
    first = await begin(telling, "run", "000000")
    await server.asked.wait()
    others = [await begin(telling, "run", group) for group in ("000001", "000002")]
    assert not first.done()
    server.open.set()
    await asyncio.gather(first, *others)
    assert server.signals == [("run", ["000000"]), ("run", ["000001", "000002"])]


async def test_a_run_does_not_wait_for_the_signal_to_another() -> None:
    server = Server()
    telling = Reports(server.client())
    tasks = [await begin(telling, run, "000000") for run in ("one", "other")]
    await server.asked.wait()
    await asyncio.sleep(0)
    assert {run for run, _ in server.signals} == {"one", "other"}
    server.open.set()
    await asyncio.gather(*tasks)


async def test_everybody_hears_of_a_refused_signal_and_may_tell_again() -> None:
    refusals = [RPCError("refused", RPCStatusCode.RESOURCE_EXHAUSTED, b"")]

    def answer(run: str) -> None:
        if refusals:
            raise refusals.pop()

    server = Server(answer)
    server.open.set()
    telling = Reports(server.client())
    tasks = [asyncio.create_task(telling.tell("run", report(group))) for group in ("000000", "000001")]
    told = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in told] == [RPCError, RPCError]
    await telling.tell("run", report("000000"))
    assert server.signals == [("run", ["000000", "000001"]), ("run", ["000000"])]


async def test_a_run_that_is_gone_needs_no_report() -> None:
    def answer(run: str) -> None:
        raise RPCError("no such run", RPCStatusCode.NOT_FOUND, b"")

    server = Server(answer)
    server.open.set()
    await Reports(server.client()).tell("run", report("000000"))


async def test_a_caller_that_is_cancelled_takes_nothing_from_the_others() -> None:
    server = Server()
    telling = Reports(server.client())
    first, second = [asyncio.create_task(telling.tell("run", report(group))) for group in ("000000", "000001")]
    await server.asked.wait()
    first.cancel()
    server.open.set()
    await second
    assert first.cancelled()
    assert server.signals == [("run", ["000000", "000001"])]
