"""Speeds and memory of GPUs, as their makers publish them, by which figures and forecasts are told on any machine."""

from __future__ import annotations

import re
from typing import NamedTuple

from reelworks.core import machine, toml
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


GPUS = {name: Gpu(name, *figures) for name, figures in toml.beside(__file__, "gpus.toml").items()}
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


def of_name(name: str) -> Gpu:
    """Return the GPU that someone names; raises `UserError` if it is not listed."""
    if (found := of_device(name)) is not None:
        return found
    raise UserError(
        "the speed of this GPU is not known",
        code="unknown-gpu",
        field="--gpu",
        value=name,
        remedy=f"{nearest(name, GPUS)}; one that is not listed is about as fast as another of its maker's line",
    )
