"""A model of torch's caching allocator for CUDA: what it reserves on the device for a sequence of allocations.

Rules as documented in torch's "CUDA semantics" and in the comments of `c10/cuda/CUDACachingAllocator`, with the default
settings: sizes are rounded up to 512 bytes; those up to 1 MiB share segments of 2 MiB, those below 10 MiB segments of
20 MiB, and larger ones get segments of their own, rounded up to 2 MiB. A request takes the smallest free block that is
large enough, of which the rest is split off where that is worth it; freed neighbours are joined. Segments are not given
back.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

MIB = 2**20
_ROUNDED_TO, _SMALL = 512, MIB
_SMALL_SEGMENT, _MIDDLE_SEGMENT, _MIDDLE, _LARGE_ROUNDED_TO = 2 * MIB, 20 * MIB, 10 * MIB, 2 * MIB


@dataclass(eq=False)
class Block:
    """A piece of a segment."""

    size: int
    is_small: bool
    is_free: bool = True
    before: Block | None = None
    after: Block | None = None
    number: int = field(default=0)


class CachingAllocator:
    """Allocate and free, and tell what is allocated and reserved, now and at most."""

    def __init__(self) -> None:
        self.allocated = self.reserved = self.most_allocated = self.most_reserved = 0
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}  # by size and number
        self._count = 0

    def allocate(self, num_bytes: int) -> Block:
        """Return a block of at least so many bytes."""
        size = max(-(-num_bytes // _ROUNDED_TO) * _ROUNDED_TO, _ROUNDED_TO)
        block = self._take(size) or self._new_segment(size)
        block.is_free = False
        self._split(block, size)
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Give a block back, joined with free neighbours."""
        self.allocated -= block.size
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                self._remove(other)
                block = _joined(other, block) if other is block.before else _joined(block, other)
        block.is_free = True
        self._add(block)

    def _take(self, size: int) -> Block | None:
        blocks = self._free[size <= _SMALL]
        place = bisect.bisect_left(blocks, (size, -1))
        return None if place == len(blocks) else blocks.pop(place)[2]

    def _new_segment(self, size: int) -> Block:
        if size <= _SMALL:
            whole = _SMALL_SEGMENT
        elif size < _MIDDLE:
            whole = _MIDDLE_SEGMENT
        else:
            whole = -(-size // _LARGE_ROUNDED_TO) * _LARGE_ROUNDED_TO
        self.reserved += whole
        self.most_reserved = max(self.most_reserved, self.reserved)
        return Block(whole, size <= _SMALL)

    def _split(self, block: Block, size: int) -> None:
        rest = block.size - size
        if rest < _ROUNDED_TO if block.is_small else rest <= _SMALL:
            return
        left = Block(rest, block.is_small, before=block, after=block.after)
        if left.after is not None:
            left.after.before = left
        block.size, block.after = size, left
        self._add(left)

    def _add(self, block: Block) -> None:
        self._count += 1
        block.number = self._count
        bisect.insort(self._free[block.is_small], (block.size, block.number, block))

    def _remove(self, block: Block) -> None:
        blocks = self._free[block.is_small]
        del blocks[bisect.bisect_left(blocks, (block.size, block.number))]


def _joined(first: Block, second: Block) -> Block:
    first.size += second.size
    first.after = second.after
    if first.after is not None:
        first.after.before = first
    return first
