"""Decode each clip on one rank of a sequence group, which hands the frames to the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from reelworks.data.micro_batch import MicroBatch
from reelworks.distributed.mesh import World


class _Announced(NamedTuple):
    """A micro-batch without its frames, and their shapes."""

    batch: MicroBatch
    frames: torch.Size
    companions: dict[str, torch.Size]


def over_group(batches: Iterator[MicroBatch], world: World) -> Iterator[MicroBatch]:
    """Yield the micro-batches of the first rank of this one's sequence group, on all its ranks. Collective.

    `batches` of the other ranks are not read. Without a group, yields this rank's own.
    """
    if world.sequence is None:
        yield from batches
    elif world.is_data_leader:
        for batch in batches:
            _announce(batch, world)
            yield batch
        _announce(None, world)
    else:
        while (received := _receive(world)) is not None:
            yield received


def _announce(batch: MicroBatch | None, world: World) -> None:
    if batch is None:
        _broadcast(None, world)
        return
    about = _Announced(
        replace(batch, frames=batch.frames.new_empty(0), companions={}),
        batch.frames.shape,
        {name: frames.shape for name, frames in batch.companions.items()},
    )
    _broadcast(about, world)
    for frames in (batch.frames, *batch.companions.values()):
        _broadcast_tensor(frames.contiguous(), world)


def _receive(world: World) -> MicroBatch | None:
    about = cast(_Announced | None, _broadcast(None, world))
    if about is None:
        return None
    frames = _broadcast_tensor(torch.empty(about.frames, dtype=torch.uint8), world)
    companions = {
        name: _broadcast_tensor(torch.empty(shape, dtype=torch.uint8), world)
        for name, shape in about.companions.items()
    }
    return replace(about.batch, frames=frames, companions=companions)


def _broadcast(value: object, world: World) -> object:
    assert world.sequence is not None
    holder = [value]
    dist.broadcast_object_list(holder, src=world.rank - world.sequence.rank, group=world.sequence.group)
    return holder[0]


def _broadcast_tensor(frames: Tensor, world: World) -> Tensor:
    assert world.sequence is not None
    dist.broadcast(frames, src=world.rank - world.sequence.rank, group=world.sequence.group)
    return frames
