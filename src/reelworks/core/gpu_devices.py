"""Whether this machine has a GPU that torch may know, told without torch, whose import takes seconds."""

from __future__ import annotations

from pathlib import Path

# Of NVIDIA's driver, of AMD's, and of either in the Linux of Windows.
_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


def exist() -> bool:
    """Whether there is the device file of a GPU's driver."""
    return any(Path(file).exists() for file in _FILES)
