"""Put micro-batches onto a device, with copies that run while earlier ones are trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from reelworks.data.loader.micro_batch import MicroBatch


def upload(batches: Iterator[MicroBatch], device: torch.device) -> Iterator[MicroBatch]:
    """Yield micro-batches whose tensors all lie on a device.

    On CUDA, a micro-batch is copied from pinned memory in a stream of its own, as soon as it is decoded. Whoever uses it in the current stream waits there, not in Python; kernels that were queued before go on.
    """
    if device.type != "cuda":
        yield from (moved(batch, device) for batch in batches)
        return
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    while True:
        with torch.cuda.stream(copies):
            batch = next(batches, None)
            ready = None if batch is None else moved(batch, device)
        if ready is None:
            return
        used_in = torch.cuda.current_stream(device)
        used_in.wait_stream(copies)
        for tensor in _tensors(ready):
            tensor.record_stream(used_in)  # else its memory might be given to the next copies while it is still read
        yield ready


def moved(batch: MicroBatch, device: torch.device) -> MicroBatch:
    """Return a micro-batch with its tensors on a device, without waiting for the copies."""

    def move(tensor: Tensor) -> Tensor:
        return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)

    return replace(
        batch,
        frames=move(batch.frames),
        is_valid=move(batch.is_valid),
        companions={kind: move(frames) for kind, frames in batch.companions.items()},
        sound=None if batch.sound is None else move(batch.sound),
    )


def _tensors(batch: MicroBatch) -> list[Tensor]:
    sound = [] if batch.sound is None else [batch.sound]
    return [batch.frames, batch.is_valid, *batch.companions.values(), *sound]
