"""Whether this machine has a GPU that torch may know, told without torch, whose import takes seconds; and which to use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Of NVIDIA's driver, of AMD's, and of either in the Linux of Windows.
_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def exist() -> bool:
    """Whether there is the device file of a GPU's driver."""
    return any(Path(file).exists() for file in _FILES)


def default(number: int | None = None) -> torch.device:
    """Return the current GPU, or the one of a number; the CPU without one."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda" if number is None else f"cuda:{number}")
