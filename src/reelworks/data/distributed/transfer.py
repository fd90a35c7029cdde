"""Copy values to a device without making the host wait for it."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Return a value of CPU memory on a device; the copy to a GPU is queued behind its work, from pinned memory.

    A copy from memory that is not pinned would wait until the GPU has done all that is queued.
    """
    if device.type == "cuda" and value.device.type == "cpu":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)
