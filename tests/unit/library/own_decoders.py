"""Decoders of one's own, apart from tests: a process that decodes imports this and no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import av
import numpy as np


def by_pyav(path: str, numbers: Sequence[int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    with av.open(path) as container:
        frames = [frame.to_ndarray(format="rgb24", threads=1) for frame in container.decode(video=0)]
    return np.stack([frames[number] for number in numbers])


def failing(path: str, numbers: Sequence[int]) -> Any:
    raise OSError("no such codec")


def wrongly_shaped(path: str, numbers: Sequence[int]) -> Any:
    return np.zeros((len(numbers), 8, 8), dtype=np.uint8)
