"""Memory of a device: CUDA, ROCm and Apple's GPUs have figures of their own, and a CPU those of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reelworks.core import machine, system

if TYPE_CHECKING:
    import torch


def total_bytes(device: torch.device) -> int | None:
    """Return the memory that a GPU may fill, None for a CPU; Apple's is a share of the machine's, by Metal."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(torch.mps.recommended_max_memory()) if machine.is_apple(device) else None


def peak_bytes(device: torch.device) -> int:
    """Return the most memory that was taken so far, of a GPU or of this process on a CPU.

    On Apple's GPUs it is what the driver has given, which does not shrink until `release`.
    """
    import torch

    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return int(torch.mps.driver_allocated_memory()) if machine.is_apple(device) else system.peak_bytes()


def release(device: torch.device) -> None:
    """Give memory of a GPU that no tensor uses back to its driver."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif machine.is_apple(device):
        torch.mps.empty_cache()


def wait(device: torch.device) -> None:
    """Wait until a GPU has done what is queued."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif machine.is_apple(device):
        torch.mps.synchronize()
