"""The chaos run: a plan carried out on one run, then everything that must hold of it."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from . import run as runs
from .driver import Driver
from .facts import Monitor
from .plan import CONVERSING_KINDS, KINDS, Planned, make_plan
from .points import BY_NAME, OF_EVERY_RUN
from .quarantines import returns_from_quarantine
from .site import SCRIPTED, Site
from .table import Outcome
from .tokens import sampled_again

ENDLESS = 100_000
"""Steps asked for where the run is to be stopped when the plan is done."""
RUN = "chaos"
END_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Wanted:
    """The options of a chaos run."""

    seed: int = 0
    injections: int = 200
    minutes: float = 14.0
    steps: int = 40
    """At least."""
    total_steps: int | None = None
    """With a number, the run must reach this step by itself, which takes longer than the plan; without, it is stopped
    when the plan is carried out and `steps` are done."""
    restart_budget: int = 2
    agents: bool = False
    """Groups are played by agents, over the gateway."""
    kinds: Sequence[str] = ()
    """All that the run has, if none is named; likewise `points`."""
    points: Sequence[str] = ()

    def plan(self) -> dict[str, list[Planned]]:
        every_kind, every_point = (CONVERSING_KINDS, tuple(BY_NAME)) if self.agents else (KINDS, OF_EVERY_RUN)
        kinds, points = self.kinds or every_kind, self.points or every_point
        return make_plan(self.seed, self.injections, self.minutes * 60, kinds, points)


async def chaos(site: Site, wanted: Wanted) -> Outcome:
    """Raises when the run fails or stands still. What must hold of the outcome is said by `faults`."""
    await site.up()
    shape = runs.Shape(steps=wanted.total_steps or ENDLESS, restart_budget=wanted.restart_budget, agents=wanted.agents)
    config = runs.configuration(site.home, shape) if site.engine == SCRIPTED else runs.real_configuration(shape)
    await runs.start(site, RUN, config)
    monitor = Monitor(site, RUN)
    watching = asyncio.create_task(monitor.watch())
    ended = asyncio.create_task(runs.until_ended(site, RUN))
    driver = Driver(site, monitor, wanted.seed)
    try:
        await _unless(ended, _reaches(monitor, 1))
        began = time.time()
        await _unless(ended, driver.carry_out(wanted.plan()))
        if wanted.total_steps is None:
            await _unless(ended, _reaches(monitor, wanted.steps))
            ended.cancel()
            await runs.stop(site, RUN)
        else:
            await asyncio.wait_for(ended, END_TIMEOUT_S)
            await runs.result(site, RUN)
    finally:
        for task in (watching, ended):
            task.cancel()
        await asyncio.gather(watching, ended, return_exceptions=True)
    left = await runs.left_by(site.stack, RUN)
    sampled, again = sampled_again(site.home)
    return Outcome(
        seed=wanted.seed,
        injections=driver.injections,
        seconds=time.time() - began,
        steps=left.steps,
        trained_trajectories=left.trained_trajectories,
        groups=left.groups,
        sampled=sampled,
        again=again,
        flush_tokens=runs.FLUSH_TOKENS,
        audit="; ".join(left.faults) or "clean",
        quarantines=await _quarantines(site),
    )


def faults(outcome: Outcome, wanted: Wanted) -> list[str]:
    """What does not hold; empty when the run kept its promises."""
    never = [instance for instance, times in outcome.quarantines.items() if not times]
    lost = {status: outcome.groups[status] for status in ("failed", "deadline") if status in outcome.groups}
    checks = {
        f"audit: {outcome.audit}": outcome.audit == "clean",
        f"lost groups: {lost}": not lost,
        f"{outcome.again_max} tokens of one trajectory were sampled again at once": outcome.again_max
        <= outcome.flush_tokens,
        f"{outcome.steps} steps, wanted {wanted.steps}": outcome.steps >= wanted.steps,
        f"{len(outcome.injections)} injections, wanted {wanted.injections}": len(outcome.injections)
        >= wanted.injections,
        f"never quarantined: {never}": not never or wanted.total_steps is None,
    }
    return [what for what, holds in checks.items() if not holds]


async def _quarantines(site: Site) -> dict[str, int]:
    client = await site.client()
    return {name: await returns_from_quarantine(client, RUN, name) for name in site.stack.instances}


async def _reaches(monitor: Monitor, version: int) -> None:
    while monitor.pulse.version < version:  # noqa: ASYNC110 - what is waited for is in the store
        await asyncio.sleep(0.5)


async def _unless(ended: "asyncio.Task[None]", work: Coroutine[Any, Any, None]) -> None:
    """Do `work`; fails when the run ends before it is done."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise AssertionError(
            "the run ended before the plan was carried out: `psrl status chaos` says how. One that is done needs more "
            "--total-steps"
        )
    task.result()
