"""Keeps this host attached to the coordinator: tells about it ten times a second and at once when something changed,
and does what the coordinator asks for. Never fails: without a coordinator the host carries on with what it has, and
attaches again as soon as there is one."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Protocol

from ...schemas.errors import EngineUnavailable, PsrlError
from ...schemas.messages.coordination import HostCommand, HostCommandKind
from ...schemas.messages.rollout import InstanceReport
from .host import Host

log = logging.getLogger(__name__)

INTERVAL_S = 0.1
WATCH_S = 0.5
"""How often the engine is looked after."""
STEADY_S = 1.0
"""A stream that held so long and then broke is news."""


class Coordinator(Protocol):
    def attach(self, reports: AsyncIterator[InstanceReport]) -> AsyncIterator[HostCommand]: ...


async def keep_attached(host: Host, coordinator: Coordinator, ending: asyncio.Event) -> None:
    """Until it is cancelled, or `ending` is set and the last report is out."""
    watching = asyncio.create_task(_watch(host))
    steady = True
    try:
        while not ending.is_set():
            began = time.monotonic()
            try:
                async for command in coordinator.attach(_reports(host, ending)):
                    await _do(host, command)
            except PsrlError as error:
                if steady or time.monotonic() - began > STEADY_S:
                    log.warning("not attached to the coordinator, trying on: %s", error)
                steady = False
            if not ending.is_set():
                await asyncio.sleep(INTERVAL_S)
    finally:
        watching.cancel()


async def _reports(host: Host, ending: asyncio.Event) -> AsyncIterator[InstanceReport]:
    last = False
    while not last:
        last = ending.is_set()
        host.changed.clear()
        yield host.report()
        if not last and not ending.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(host.changed.wait(), INTERVAL_S)


async def _do(host: Host, command: HostCommand) -> None:
    """One that comes too late has nothing to act on."""
    try:
        if command.kind is HostCommandKind.INTERRUPT:
            await host.interrupt_requests(command.run_id, command.requests)
            log.info("interrupted %d requests %s", len(command.requests), command.reason)
    except EngineUnavailable as error:
        log.info("%s is passed over: %s", command.kind, error)
    except Exception as error:  # noqa: BLE001 - whatever an engine raises, the host stays attached
        log.warning("%s is passed over: %r", command.kind, error)


async def _watch(host: Host) -> None:
    while True:
        host.notice_death()
        host.notice_stall()
        await asyncio.sleep(WATCH_S)
