"""The order in which prompts are drawn: place `n` is prompt `n mod P` of epoch `n div P`.

Promises: every prompt once per epoch, and the same (seed, epoch) gives the same order in every process, so that the
position of a run is one number.
"""

import random
from functools import lru_cache
from typing import NamedTuple


class Place(NamedTuple):
    epoch: int
    position: int
    """Index in the epoch's order of prompts."""
    prompt: int
    """Index among the usable prompts."""


def place_of(number: int, prompts: int, shuffle: bool, seed: int) -> Place:
    """What the `number`-th place of a run's data holds."""
    epoch, position = divmod(number, prompts)
    return Place(epoch, position, permutation(prompts, seed, epoch)[position] if shuffle else position)


@lru_cache(maxsize=8)
def permutation(prompts: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(prompts))
    # Seeded by text: hashed by SHA-512, the same everywhere, and (1, 23) is not (12, 3).
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return tuple(order)
