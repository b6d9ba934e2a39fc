"""Sampling seeds: one per trajectory, derived from the run's seed, so that a run can be repeated.

Mixed by splitmix64 (Steele, Lea, Flood 2014): generators that start from neighbouring numbers give correlated first
draws, and short answers consist of first draws.
"""

_MASK = (1 << 64) - 1


def mixed(*parts: int) -> int:
    """A well-spread number in [0, 2**31) that depends on every part and their order."""
    state = 0
    for part in parts:
        state = (state ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 33


def turn_seed(group_seed: int, index: int, turn: int = 0) -> int:
    """Of a trajectory's turn: with the same one, every turn would begin with the same draws."""
    return mixed(group_seed, index, turn) if turn else mixed(group_seed, index)


def group_seed(run_seed: int, group: str) -> int:
    """`group` is the group's id: a training number or a validation name."""
    return mixed(run_seed, *group.encode())
