"""Rank and number of ranks of a loader, the micro-batches that follow from them, and a sum over the ranks."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reelworks.core import launcher
from reelworks.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

# A function that sums a tensor of integers in CPU memory over the ranks, in place.
AllReduce = Callable[["Tensor"], Any]
# The default process group, and the one of gloo beside it. Groups that outlive `destroy_process_group` abort the program at
# its exit, so torch alone holds them.
_groups: list[weakref.ref[Any]] = []


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and number of ranks: the arguments, else from torch.distributed, the environment, or 0 and 1."""
    known = _process_place() or (launcher.number("RANK"), launcher.number("WORLD_SIZE"))
    rank, world_size = (
        default if value is None else value for value, default in zip((rank, world_size), known, strict=True)
    )
    if not 0 <= rank < world_size:
        raise UserError(
            f"the rank is not below the number of ranks, {world_size}",
            code="rank-outside-world",
            field="rank",
            value=rank,
            remedy=f"set a rank from 0 to {world_size - 1}, or omit rank and world_size",
        )
    return rank, world_size


def shape_of_step(micro_batches_per_step: int | None, world_size: int) -> tuple[int, int]:
    """Return the micro-batches of a step, by default one on each rank, and how many of them have one bucket."""
    per_step = world_size if micro_batches_per_step is None else micro_batches_per_step
    return per_step, world_size if per_step % world_size == 0 else 1


def sum_of_process_group(rank: int, world_size: int) -> AllReduce | None:
    """Return a sum over the ranks of torch.distributed; None for one rank, or if these are not its ranks.

    The first call is collective. It has a group of gloo of its own, so that numbers in CPU memory are summed whatever the
    backend is, and no GPU is waited for.
    """
    if world_size == 1 or _process_place() != (rank, world_size):
        return None
    from torch import distributed

    if not _groups or _groups[0]() is not distributed.group.WORLD:
        _groups[:] = [weakref.ref(distributed.group.WORLD), weakref.ref(distributed.new_group(backend="gloo"))]
    group = _groups[1]
    return lambda numbers: distributed.all_reduce(numbers, group=group())


def _process_place() -> tuple[int, int] | None:
    """Return rank and size of the default process group, which only a program that imported torch can have."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
