"""`python -m tests.benchmarks [name …]`: the measurements of `BY_DEFAULT`, or those named."""

import asyncio
import sys
import time

from tests.benchmarks import control_cost, generation, latency, memory, pure, routing, sessions, weights, whole

MEASUREMENTS = {
    "generation": generation.measure,
    "control": control_cost.measure,
    "latency": latency.measure,
    "routing": routing.measure,
    "sessions": sessions.measure,
    "weights": weights.measure,
    "whole": whole.measure,
    "ledger": pure.measure_ledger,
    "simulator": pure.measure_simulator,
    "saturated": generation.measure_saturated,
    "memory": memory.measure,
    "many-sessions": sessions.measure_many,
}
BY_DEFAULT = ("generation", "control", "latency", "routing", "sessions", "weights", "whole", "ledger", "simulator")


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        sys.exit(f"unknown measurement {unknown[0]!r}; allowed: {', '.join(MEASUREMENTS)}")
    for name in names or BY_DEFAULT:
        began = time.monotonic()
        print(f"== {name}", flush=True)
        asyncio.run(MEASUREMENTS[name]())
        print(f"   ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
