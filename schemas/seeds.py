"""Sampling seeds: one per trajectory, derived from the run's seed, so that a run can be repeated."""

RUN_STRIDE = 1_000_003
GROUP_STRIDE = 1009
"""More than any group has trajectories: the seeds of two groups do not overlap."""


def run_seed(seed: int) -> int:
    return seed * RUN_STRIDE


def group_seed(base: int, number: int) -> int:
    """Seed of the group's trajectory 0; trajectory i adds i."""
    return base + number * GROUP_STRIDE
