"""A disturbed run beside one that was not: same configuration, same answers, so what they leave must be the same.

`cycles`: everything is killed in mid-step again and again. `bitwise`: with eta = 0, any injections.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from . import run as runs
from . import triggers
from .driver import Driver, Injection
from .facts import Monitor
from .plan import Planned
from .site import Site

CALM, ROUGH = "calm", "rough"
MID_STEP = ("mid-update", "before-publish", "after-batch", "mid-update", "mid-weight-write", "after-publish")
"""Where a step stands still while everything is killed, in turn."""
POINT_DEADLINE_S = 120.0
PATIENCE_S = 1200.0

LENGTHS = """
    select g.epoch, t.tokens, count(*) from batch_members m
        join trajectories t using (run_id, group_id, index) join groups g using (run_id, group_id)
    where run_id = %(run)s group by 1, 2"""
PROMPTS = """
    select g.epoch, g.row, count(distinct m.group_id) from batch_members m join groups g using (run_id, group_id)
    where run_id = %(run)s group by 1, 2"""
ORDER = """
    select m.buffer, m.group_id, m.index, g.epoch, g.row, t.tokens, t.reward from batch_members m
        join groups g using (run_id, group_id) join trajectories t using (run_id, group_id, index)
    where run_id = %(run)s order by 1, 2, 3"""
LOSSES = """
    select buffer, metrics->'update'->'loss', metrics->'update'->'grad_norm', metrics->'log_probs'->'gap_mean_abs'
    from step_metrics where run_id = %(run)s order by 1"""
WEIGHTS = """
    select version, manifest->'shards' from weight_versions where run_id = %(run)s order by 1"""


@dataclass(frozen=True)
class Compared:
    """What the two runs left, and what differs."""

    seen: str
    injections: int
    differences: tuple[str, ...]


async def cycles(site: Site, count: int, shape: runs.Shape) -> Compared:
    """Kill everything in mid-step `count` times, `psrl up` after each, and go on."""

    async def disturb(monitor: Monitor) -> int:
        for number in range(count):
            await _cycle(site, monitor, MID_STEP[number % len(MID_STEP)])
        return count

    killed = await _both(site, shape, disturb)
    found = {run: (await _rows(site, LENGTHS, run), await _rows(site, PROMPTS, run)) for run in (CALM, ROUGH)}
    (calm, _), (rough, prompts) = found[CALM], found[ROUGH]
    faults = [] if calm == rough else [f"response lengths differ: {Counter(calm) - Counter(rough)}"]
    faults += [f"epoch {epoch}: prompt {row} was trained {times} times" for epoch, row, times in prompts if times != 1]
    if len(prompts) != shape.steps * runs.BATCH_GROUPS:
        faults.append(f"{len(prompts)} prompts trained, wanted {shape.steps * runs.BATCH_GROUPS}")
    faults += (await runs.left_by(site.stack, ROUGH)).faults
    seen = f"{len(prompts)} prompts, each once per epoch; {len(rough)} different (epoch, response length)"
    return Compared(seen, killed, tuple(faults))


async def _cycle(site: Site, monitor: Monitor, point: str) -> None:
    version = monitor.pulse.version
    triggers.arm(site.home, point, triggers.HOLD)
    await _until(lambda: triggers.fired(site.home, point) is not None)
    ended = site.kill_everything()
    site.say(f"chaos: {ended} processes ended at {point}, v{monitor.pulse.version}")
    await site.up()
    await _until(lambda: monitor.pulse.version > version)


async def bitwise(site: Site, lanes: dict[str, list[Planned]], seed: int, shape: runs.Shape) -> Compared:
    """Carry the plan out as far as the run is long."""
    injections: list[Injection] = []

    async def disturb(monitor: Monitor) -> int:
        driver = Driver(site, monitor, seed)
        driver.injections = injections
        await driver.carry_out(lanes)
        return len(injections)

    await _both(site, shape, disturb)
    faults = list((await runs.left_by(site.stack, ROUGH)).faults)
    counts = []
    for what, query in (("data order", ORDER), ("losses", LOSSES), ("weights", WEIGHTS)):
        calm, rough = await _rows(site, query, CALM), await _rows(site, query, ROUGH)
        counts.append(f"{len(rough)} rows of {what}")
        if calm != rough:
            lengths = (len(calm), len(rough))
            first = next((pair for pair in zip(calm, rough, strict=False) if pair[0] != pair[1]), lengths)
            faults.append(f"{what} differ: {first}")
    return Compared(", ".join(counts) + " are the same", len(injections), tuple(faults))


async def _both(site: Site, shape: runs.Shape, disturb: Callable[[Monitor], Awaitable[int]]) -> int:
    """One run in peace, then one while `disturb` works, which ends with the run at the latest."""
    await site.up()
    config = runs.configuration(site.home, shape)
    await runs.start(site, CALM, config)
    await asyncio.wait_for(runs.result(site, CALM), PATIENCE_S)
    site.say(f"chaos: {shape.steps} steps undisturbed")
    await runs.start(site, ROUGH, config)
    monitor = Monitor(site, ROUGH)
    watching = asyncio.create_task(monitor.watch())
    ended = asyncio.create_task(runs.until_ended(site, ROUGH))
    work = asyncio.create_task(_after_start(monitor, disturb))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([work, ended], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await ended
        result = work.result() if work.done() else -1
        await runs.result(site, ROUGH)  # raises what the run failed with
        return result
    finally:
        for task in (watching, ended, work):
            task.cancel()
        with suppress(Exception):
            await asyncio.gather(watching, ended, work, return_exceptions=True)


async def _after_start(monitor: Monitor, disturb: Callable[[Monitor], Awaitable[int]]) -> int:
    await _until(lambda: monitor.pulse.version >= 1)
    return await disturb(monitor)


async def _rows(site: Site, query: str, run: str) -> Sequence[Any]:
    async with await psycopg.AsyncConnection.connect(site.store) as connection:
        found = await (await connection.execute(query, {"run": run})).fetchall()  # type: ignore[call-overload]
    return sorted(found, key=str) if query in (LENGTHS, PROMPTS) else found


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(POINT_DEADLINE_S):
        while not true():  # noqa: ASYNC110 - files and rows of other processes
            await asyncio.sleep(0.05)
