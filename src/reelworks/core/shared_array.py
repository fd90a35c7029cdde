"""Arrays in memory that other processes can write to, which is gone when its last user ends, however that happens.

The memory is an anonymous file (`memfd_create`), handed on as an open file. It has no name that a killed process could
leave behind, and is not limited by the size of /dev/shm, which containers often set to 64 MB.
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Slot:
    """Place of one entry of a `SharedArray`.

    Attributes:
        array: View of the entry.
        memory: The array that it is part of, whose open file it keeps alive.
        offset: First byte of the entry.
    """

    array: Bytes
    memory: SharedArray
    offset: int


class SharedArray:
    """Zeros of a shape, uint8, that processes can write to by an open file.

    Where the system has no anonymous files, or if `shared` is False, it is an ordinary array and `file` is None.
    """

    def __init__(self, shape: tuple[int, ...], *, shared: bool = True) -> None:
        self.file: int | None = None
        size = math.prod(shape)
        if not shared or not size or not hasattr(os, "memfd_create"):
            self.array: Bytes = np.zeros(shape, dtype=np.uint8)
            return
        self.file = os.memfd_create("reelworks")
        os.ftruncate(self.file, size)
        # The array keeps the mapping alive, and with it the memory, also after the file is closed.
        self.array = np.frombuffer(mmap.mmap(self.file, size), dtype=np.uint8).reshape(shape)

    def slot(self, index: int) -> Slot:
        """Return the place of one entry of the first dimension."""
        return Slot(self.array[index], self, index * (self.array.nbytes // len(self.array)))

    def close_file(self) -> None:
        """End the access by other processes; the array itself stays."""
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def __del__(self) -> None:
        self.close_file()


def write(file: int, offset: int, buffers: list[memoryview[Any]]) -> None:
    """Write buffers of bytes one after the other to the open file of a `SharedArray`."""
    for buffer in buffers:
        while buffer.nbytes:
            written = os.pwrite(file, buffer, offset)
            buffer, offset = buffer[written:], offset + written
