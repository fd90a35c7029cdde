"""Put tensors and micro-batches onto a device, with copies that run while earlier ones are trained."""

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
        for tensor in (ready.frames, ready.is_valid, *ready.companions.values(), ready.sound):
            if tensor is not None:  # else its memory might be given to the next copies while it is still read
                tensor.record_stream(used_in)
        yield ready


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Return a value of CPU memory on a device; the copy to a GPU is queued behind its work, from pinned memory.

    A copy from memory that is not pinned would wait until the GPU has done all that is queued.
    """
    if device.type == "cuda" and value.device.type == "cpu":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def moved(batch: MicroBatch, device: torch.device) -> MicroBatch:
    """Return a micro-batch with its tensors on a device, without waiting for the copies."""
    return replace(
        batch,
        frames=to_device(batch.frames, device),
        is_valid=to_device(batch.is_valid, device),
        companions={kind: to_device(frames, device) for kind, frames in batch.companions.items()},
        sound=None if batch.sound is None else to_device(batch.sound, device),
    )
