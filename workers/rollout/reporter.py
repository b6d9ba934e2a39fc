"""Tells the coordinator about this host, twice a second and at once when something changed. Never fails: without a
coordinator the host carries on with what it has."""

import asyncio
import logging
from typing import Protocol

from ...schemas.errors import PsrlError
from ...schemas.messages.rollout import InstanceReport
from .host import Host

log = logging.getLogger(__name__)

INTERVAL_S = 0.5


class Coordinator(Protocol):
    async def report(self, report: InstanceReport) -> None: ...


async def keep_reporting(host: Host, coordinator: Coordinator) -> None:
    """Runs until cancelled."""
    reached = True
    while True:
        host.changed.clear()
        host.notice_death()
        host.notice_stall()
        try:
            await coordinator.report(host.report())
            if not reached:
                log.info("the coordinator takes reports again")
            reached = True
        except PsrlError as error:
            if reached:
                log.warning("reports are not taken, trying on: %s", error)
            reached = False
        try:
            await asyncio.wait_for(host.changed.wait(), INTERVAL_S)
        except TimeoutError:
            continue
