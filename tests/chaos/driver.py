"""Carries out a plan against a running stack and measures how each injection is recovered from."""

import asyncio
import os
import random
import signal
import time
from dataclasses import dataclass

from psrl.schemas.errors import PsrlError
from psrl.schemas.ids import instance_id
from psrl.workers.stack.parts import CPU, GATEWAY, ORCHESTRATOR, ROLLOUT, TEMPORAL, TRAINER
from psrl.workers.stack.supervision import SUPERVISOR

from . import triggers
from .facts import Monitor
from .plan import ENGINE, RANDOM, WHOLE, Planned
from .site import ALL, INSTANCES, Site

FIRE_DEADLINE_S = 90.0
"""For a process to pass an armed point."""
RECOVERY_DEADLINE_S = 900.0
"""Longer than the longest pause between two tries of a quarantined instance, and one start."""
POLL_S = 0.3
AGAIN_S = 3.0
"""Before a process that was not there is looked for again."""
TRIES = 20
DECISIONS = ("drawn", "batch", "scored")
"""Rows that exist only because a workflow went on."""
NEEDED = {
    TRAINER: ("version",),
    CPU: ("drawn", "scored"),
    ORCHESTRATOR: DECISIONS,
    TEMPORAL: DECISIONS,
    GATEWAY: ("turn",),
}
"""Which rows show that a part works again; any, for a part that is not here."""


@dataclass
class Injection:
    """One kill, and what became of it. Times are Unix times."""

    kind: str
    point: str
    part: str = ""
    """The process: `rollout-1`."""
    pid: int = 0
    at: float = 0.0
    works_s: float | None = None
    """From the kill until another process does the part's work."""
    recovered_s: float | None = None
    """From the kill until the part works and the run made progress that needs it."""
    fault: str = ""
    """Why it did not happen, or was not recovered from."""


class NotRecovered(AssertionError):
    """The run stands still after an injection."""


class Driver:
    def __init__(self, site: Site, monitor: Monitor, seed: int) -> None:
        self._site, self._monitor = site, monitor
        self._chance = random.Random(f"{seed}/driver")
        self._whole = asyncio.Event()
        self._whole.set()
        self.injections: list[Injection] = []

    async def carry_out(self, lanes: dict[str, list[Planned]]) -> None:
        """Returns when every injection of every lane was recovered from. Raises `NotRecovered`."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for lane in lanes.values():
                group.create_task(self._lane(lane, began, group))

    async def _lane(self, lane: list[Planned], began: float, group: asyncio.TaskGroup) -> None:
        """Goes on when the part works again. Whether the run makes progress is seen beside: it may wait for another
        part that was ended meanwhile."""
        for planned in lane:
            await asyncio.sleep(max(0.0, began + planned.at_s - time.monotonic()))
            injection = await self._injected(planned)
            self.injections.append(injection)
            works = asyncio.Event()
            group.create_task(self._recover(injection, works))
            await works.wait()

    async def _injected(self, planned: Planned) -> Injection:
        for _ in range(TRIES):
            await self._whole.wait()
            injection = Injection(planned.kind, planned.point)
            if await self._inject(injection):
                return injection
            await asyncio.sleep(AGAIN_S)  # it was starting, or ended by itself
        raise NotRecovered(f"{planned} was not possible in {TRIES} tries; processes: {self._site.processes()}")

    # --- ending processes ------------------------------------------------------------------------------------------

    async def _inject(self, injection: Injection) -> bool:
        """False when it did not come to it."""
        if injection.kind in WHOLE:
            await self._end_whole(injection)
            return True
        if injection.point == RANDOM:
            return await self._end_one(injection)
        return await self._end_at_point(injection)

    async def _end_whole(self, injection: Injection) -> None:
        """And `psrl up`, which must bring the same run back without being told."""
        self._whole.clear()
        try:
            injection.part, injection.at = injection.kind, time.time()
            if injection.kind == ALL:
                self._site.kill_everything()
            else:
                injection.pid = self._site.pid(SUPERVISOR) or 0
                os.kill(injection.pid, signal.SIGKILL)
            await self._site.up()
        finally:
            self._whole.set()

    async def _end_one(self, injection: Injection) -> bool:
        part = injection.kind
        if part in (ROLLOUT, ENGINE):
            part = instance_id(self._chance.randrange(INSTANCES))
        pid = self._pid(injection.kind, part)
        if pid is None:
            return False
        injection.part, injection.pid, injection.at = part, pid, time.time()
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False  # it ended by itself meanwhile
        return True

    async def _end_at_point(self, injection: Injection) -> bool:
        triggers.arm(self._site.home, injection.point)
        deadline = time.monotonic() + FIRE_DEADLINE_S
        while (fired := triggers.fired(self._site.home, injection.point)) is None:
            if time.monotonic() > deadline:
                triggers.disarm(self._site.home, injection.point)
                self._site.say(f"chaos: no process came by {injection.point} within {FIRE_DEADLINE_S:.0f} s")
                return False
            await asyncio.sleep(0.05)
        injection.part, injection.pid, injection.at = fired.part, fired.pid, fired.at
        return True

    def _pid(self, kind: str, part: str) -> int | None:
        return self._site.engine_pid(part) if kind == ENGINE else self._site.pid(part)

    # --- recovery --------------------------------------------------------------------------------------------------

    async def _recover(self, injection: Injection, works: asyncio.Event) -> None:
        deadline = time.monotonic() + RECOVERY_DEADLINE_S
        while injection.recovered_s is None:
            if time.monotonic() > deadline:
                injection.fault = f"not recovered within {RECOVERY_DEADLINE_S:.0f} s"
                raise NotRecovered(f"{injection}; processes: {self._site.processes()}")
            await asyncio.sleep(POLL_S)
            passed = time.time() - injection.at
            if injection.works_s is None and await self._works(injection):
                injection.works_s = passed
                works.set()
            if injection.works_s is not None and self._progressed(injection):
                injection.recovered_s = passed
        self._tell(injection)

    async def _works(self, injection: Injection) -> bool:
        if injection.kind in WHOLE:
            return True  # `up` returned: every part answers
        await self._whole.wait()
        try:
            if injection.kind == ENGINE:
                return await self._site.engine_works(injection.part, injection.pid)
            return await self._site.works(injection.part, injection.pid, injection.at)
        except (OSError, PsrlError):
            return False

    def _progressed(self, injection: Injection) -> bool:
        """Progress that needs the part that was ended."""
        pulse, moment = self._monitor.pulse, injection.at
        if injection.kind in (ROLLOUT, ENGINE):
            return pulse.since(moment, f"segment {injection.part}")
        if injection.kind in WHOLE:
            return pulse.since(moment, "version") and pulse.since(moment, *DECISIONS)
        return pulse.since(moment, *NEEDED.get(injection.kind, ()))

    def _tell(self, injection: Injection) -> None:
        number, version = self.injections.index(injection) + 1, self._monitor.pulse.version
        self._site.say(
            f"chaos: {number:3} v{version:<3} {injection.part:12} {injection.point:18} works after"
            f" {injection.works_s or 0:5.1f} s, recovered after {injection.recovered_s or 0:5.1f} s"
        )
