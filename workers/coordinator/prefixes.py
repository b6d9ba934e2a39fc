"""What an instance is thought to have in its prefix cache: an approximate radix tree over blocks of tokens.

A block's number stands for all tokens up to its end (`activities/routing/prefix.py`), so a set of numbers is the tree:
whose first n blocks are there shares a prefix of n blocks. What was routed to the instance counts as there; the longest
unused is forgotten first, a prefix's end before its beginning. The caller forgets all at a new version (L1).
"""

from collections.abc import Sequence


class Prefixes:
    def __init__(self) -> None:
        self._blocks: dict[int, None] = {}
        """In the order of their last use."""

    def __len__(self) -> int:
        return len(self._blocks)

    def shared(self, blocks: Sequence[int]) -> int:
        """How many blocks from the beginning are there. Where one is, all before it are: a search finds the end."""
        there, missing = 0, len(blocks)
        while there < missing:
            middle = (there + missing) // 2
            if blocks[middle] in self._blocks:
                there = middle + 1
            else:
                missing = middle
        return there

    def add(self, blocks: Sequence[int], most: int) -> None:
        for block in reversed(blocks):
            self._blocks.pop(block, None)
            self._blocks[block] = None
        while len(self._blocks) > most:
            del self._blocks[next(iter(self._blocks))]

    def clear(self) -> None:
        self._blocks.clear()
