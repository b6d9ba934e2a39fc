"""`python -m tests.benchmarks.neighbour 0.3`: takes 30 % of a core until it is killed.

Cores of one machine share its caches and memory, and virtual ones perhaps a real core: what an engine loses to a busy
neighbour is no work of ours.
"""

import sys
import time

PERIOD_S = 0.005


def main(share: float) -> None:
    table: dict[int, str] = {}
    while True:
        until = time.perf_counter() + share * PERIOD_S
        while time.perf_counter() < until:
            for number in range(200):
                table[number] = str(number)
        time.sleep((1 - share) * PERIOD_S)


if __name__ == "__main__":
    main(float(sys.argv[1]))
