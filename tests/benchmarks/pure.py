"""Pure code at full size, without servers: the ledger, and the simulator."""

import random
import time
from collections import deque
from pathlib import Path

from psrl.schemas.ids import GroupId, Version, training_group
from psrl.workers.simulate.read import read
from psrl.workers.simulate.run import simulate
from psrl.workflows.ledger import Ledger

BATCH, ETA, STEPS = 1024, 3, 40
LEDGER_FLOOR, SIMULATOR_FLOOR = 50_000, 200_000
"""Operations per second, and requests per minute, of one core: what a run, and a person, need."""
SCENARIO = Path("examples/simulator/lognormal.yaml")


async def measure_ledger() -> None:
    """A run's life: groups are reserved in waves as room appears and occupied in any order, one in ten is released and
    replaced, batches are consumed and published. Each call is one operation, whatever it does."""
    rng = random.Random(0)
    names = map(training_group, range(10**9))
    ledger = Ledger(staleness=ETA, batch_groups=BATCH, offered_groups=BATCH)
    unfinished: deque[GroupId] = deque()
    operations, began = 0, time.process_time()
    while ledger.version < STEPS:
        while free := ledger.free(ledger.version):
            wave = [next(names) for _ in range(min(free, 8))]
            ledger.reserve(ledger.version, wave)
            unfinished.extend(wave)
            operations += 2
        unfinished.rotate(rng.randrange(64))
        group = unfinished.popleft()
        ledger.release(group) if rng.random() < 0.1 else ledger.occupy(group)
        operations += 2
        if ledger.ready and ledger.consume().taken:
            ledger.publish(Version(ledger.version + 1))
            operations += 2
    rate = operations / (time.process_time() - began)
    print(f"ledger, B = {BATCH:,}, eta = {ETA}: {rate:,.0f} operations per second; wanted: {LEDGER_FLOOR:,}")


async def measure_simulator() -> None:
    scenarios = read(SCENARIO, [], []).scenarios
    for name in ("synchronous", "eta 3", "eta 3, policies"):
        began = time.process_time()
        requests = simulate(name, scenarios[name]).result.requests
        rate = 60 * requests / (time.process_time() - began)
        print(f"simulator, {name}: {rate:,.0f} requests per minute; wanted: {SIMULATOR_FLOOR:,}")
