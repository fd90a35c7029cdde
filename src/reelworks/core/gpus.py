"""Speeds and memory of GPUs, as their makers publish them, by which figures and forecasts are told on any machine."""

from __future__ import annotations

import re
from typing import NamedTuple

from reelworks.core import machine
from reelworks.core.errors import UserError, nearest


class Gpu(NamedTuple):
    """A GPU by its data sheet.

    Attributes:
        tflops: Dense TFLOP/s in bfloat16, summed in float32: half of those "with sparsity".
        gb_per_second: Bandwidth of its memory.
    """

    name: str
    tflops: float
    gb_per_second: float
    memory_gb: float


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A10", 125.0, 600, 24),
        Gpu("A100", 312.0, 2039, 80),
        Gpu("A40", 149.7, 696, 48),
        Gpu("A6000", 154.8, 768, 48),
        Gpu("B200", 2250.0, 8000, 180),
        Gpu("GH200", 989.4, 4000, 96),
        Gpu("H100", 989.4, 3350, 80),
        Gpu("H100 NVL", 835.0, 3900, 94),
        Gpu("H100 PCIe", 756.0, 2000, 80),
        Gpu("H200", 989.4, 4800, 141),
        Gpu("L4", 121.0, 300, 24),
        Gpu("L40", 181.0, 864, 48),
        Gpu("L40S", 362.0, 864, 48),
        Gpu("RTX 3090", 71.2, 936, 24),
        Gpu("RTX 4090", 165.2, 1008, 24),
        Gpu("RTX 5090", 209.5, 1792, 32),
        Gpu("RTX 6000 Ada", 364.2, 960, 48),
    )
}
USUAL = GPUS["RTX 4090"]  # for which times are told where no GPU is known
OPTION_HELP = f"GPU to estimate time for, such as H100; default: that of this machine, else an {USUAL.name}"


def of_device(device_name: str) -> Gpu | None:
    """Return the GPU whose name is the longest within that of a device, such as "NVIDIA H100 80GB HBM3"."""
    listed = [name for name in GPUS if re.search(rf"\b{re.escape(name)}\b", device_name, re.IGNORECASE)]
    return GPUS[max(listed, key=len)] if listed else None


def here() -> Gpu | None:
    """Return the GPU of this machine, if it has one that is listed."""
    if not machine.has_gpu():
        return None
    import torch  # slow

    return of_device(torch.cuda.get_device_name()) if torch.cuda.is_available() else None


def of_name(name: str, field: str) -> Gpu:
    """Return the GPU that someone names; raises `UserError` if it is not listed."""
    if (found := of_device(name)) is not None:
        return found
    raise UserError(
        "the speed of this GPU is not known",
        code="unknown-gpu",
        field=field,
        value=name,
        remedy=f"{nearest(name, GPUS)}; one that is not listed is about as fast as another of its maker's line",
    )
