"""Decode each clip on one rank of those that share it, which hands the frames to the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from reelworks.data.distributed.mesh import World
from reelworks.data.distributed.sequence import SequenceGroup
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest


class _Announced(NamedTuple):
    """A micro-batch without its frames, and their shapes."""

    batch: MicroBatch
    frames: torch.Size
    companions: dict[str, torch.Size]


def over_group(
    requests: Iterable[MicroBatchRequest],
    read: Callable[[Iterator[MicroBatchRequest]], Iterator[MicroBatch]],
    world: World,
) -> Iterator[MicroBatch]:
    """Yield the micro-batches of `requests`, each decoded by the first of the ranks that share it. Collective.

    `read` decodes ahead; of the micro-batches of another rank it decodes no clip. Without groups, it decodes all.
    """
    if not world.sequences:
        yield from read(iter(requests))
        return
    waiting = deque[MicroBatchRequest]()

    def own() -> Iterator[MicroBatchRequest]:
        for request in requests:
            waiting.append(request)
            yield request if world.leads(request.sequence_degree) else request.without_clips()

    for batch in read(own()):
        group = world.sequences.get(waiting.popleft().sequence_degree)
        if group is None:
            yield batch
        elif group.rank == 0:
            _announce(batch, world, group)
            yield batch
        else:
            yield _receive(world, group)


def _announce(batch: MicroBatch, world: World, group: SequenceGroup) -> None:
    about = _Announced(
        replace(batch, frames=batch.frames.new_empty(0), companions={}),
        batch.frames.shape,
        {name: frames.shape for name, frames in batch.companions.items()},
    )
    _broadcast(about, world, group)
    for frames in (batch.frames, *batch.companions.values()):
        _broadcast_tensor(frames.contiguous(), world, group)


def _receive(world: World, group: SequenceGroup) -> MicroBatch:
    about = cast(_Announced, _broadcast(None, world, group))
    frames = _broadcast_tensor(torch.empty(about.frames, dtype=torch.uint8, device="cpu"), world, group)
    companions = {
        name: _broadcast_tensor(torch.empty(shape, dtype=torch.uint8, device="cpu"), world, group)
        for name, shape in about.companions.items()
    }
    return replace(about.batch, frames=frames, companions=companions)


def _broadcast(value: object, world: World, group: SequenceGroup) -> object:
    holder = [value]
    dist.broadcast_object_list(holder, src=world.rank - group.rank, group=group.group)
    return holder[0]


def _broadcast_tensor(frames: Tensor, world: World, group: SequenceGroup) -> Tensor:
    dist.broadcast(frames, src=world.rank - group.rank, group=group.group)
    return frames
