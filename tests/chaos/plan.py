"""Which process is ended when: drawn from a seed, one lane per part, so that parts fail independently of each other.

Within a lane an injection waits until the one before it has recovered; lanes overlap, as failures do.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from psrl.workers.stack.parts import COORDINATOR, CPU, GATEWAY, ORCHESTRATOR, POSTGRES, ROLLOUT, TEMPORAL, TRAINER
from psrl.workers.stack.supervision import SUPERVISOR

from .points import BY_NAME, OF_EVERY_RUN, POINTS
from .site import ALL

ENGINE = "engine"
RANDOM = "at random"
WEIGHTS = {
    ROLLOUT: 0.12,
    ENGINE: 0.12,
    ORCHESTRATOR: 0.14,
    CPU: 0.18,
    COORDINATOR: 0.19,
    TEMPORAL: 0.11,
    POSTGRES: 0.11,
    TRAINER: 0.01,
    SUPERVISOR: 0.01,
    ALL: 0.01,
    GATEWAY: 0.14,
}
"""Share of the injections at random moments. A trainer takes tens of seconds to come back, and with the supervisor
everything restarts: few of them fill the same time as many of the others."""
CONVERSING_KINDS = tuple(WEIGHTS)
KINDS = tuple(kind for kind in WEIGHTS if kind != GATEWAY)
"""Without agents nobody needs the gateway."""
WHOLE = (SUPERVISOR, ALL)
ONCE_ONLY = (TRAINER,)
"""Whose named points come once; those of the others come `OTHER_ROUNDS` times."""
OTHER_ROUNDS = 2


@dataclass(frozen=True)
class Planned:
    kind: str
    point: str
    at_s: float
    """Earliest moment, seconds after the run began to serve."""


def make_plan(
    seed: int, injections: int, seconds: float, kinds: Sequence[str] = KINDS, points: Sequence[str] = OF_EVERY_RUN
) -> dict[str, list[Planned]]:
    """By lane, each in order of time. Every part once first, then every named point (most of them twice), as far as
    `injections` reaches; what is left is spread over the parts."""
    chance = random.Random(seed)
    once = [(kind, RANDOM) for kind in kinds]
    named = [(BY_NAME[name].kind, name) for name in points if BY_NAME[name].kind in kinds]
    more = [pair for _ in range(OTHER_ROUNDS - 1) for pair in named if pair[0] not in ONCE_ONLY]
    chance.shuffle(named)
    chance.shuffle(more)
    chosen = [*once, *named, *more][:injections]
    left = injections - len(chosen)
    if left > 0:
        chosen += [(kind, RANDOM) for kind in chance.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=left)]
    lanes: dict[str, list[Planned]] = {}
    for kind, point in chosen:
        planned = Planned(kind, point, chance.uniform(0, seconds))
        lanes.setdefault(lane_of(kind), []).append(planned)
    return {lane: sorted(plan, key=lambda planned: planned.at_s) for lane, plan in lanes.items()}


def lane_of(kind: str) -> str:
    """Parts whose restarts are the same restart share a lane."""
    if kind in WHOLE:
        return "whole stack"
    return ROLLOUT if kind == ENGINE else kind


assert set(CONVERSING_KINDS) >= {point.kind for point in POINTS}
assert set(KINDS) >= {BY_NAME[name].kind for name in OF_EVERY_RUN}
