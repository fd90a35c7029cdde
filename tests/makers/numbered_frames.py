"""Draw frames that tell their own number and orientation, and read both.

Quadrants of four colours tell how a frame is turned, mirrored or cut. A band across its middle has the number's bits, white
for 1, and a grey bar above moves by a little from frame to frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]  # [H, W, 3]
Frames = NDArray[np.uint8]  # [T, H, W, 3]
SIZE = (128, 96)  # width and height
BITS = 11
COLORS = np.array([(215, 40, 40), (40, 190, 40), (40, 60, 210), (210, 200, 50)], np.uint8)  # left to right, then below
_WHITE, _GREY = 255, 128


def frame(number: int, size: tuple[int, int] = SIZE) -> Frame:
    """Draw the frame of a number below 2048; the size is width and height."""
    width, height = size
    drawn = np.zeros((height, width, 3), np.uint8)
    half = width // 2
    for rows, pair in ((slice(0, height // 2), COLORS[:2]), (slice(height // 2, height), COLORS[2:])):
        drawn[rows, :half], drawn[rows, half:] = pair
    drawn[: height // 16, : width // 4] = 0
    bar = number * 3 % (width // 4)
    drawn[: height // 16, bar : bar + max(width // 32, 1)] = _GREY
    band = slice(3 * height // 8, 5 * height // 8)
    drawn[band] = 0
    for bit in range(BITS):
        if number >> bit & 1:
            drawn[band, bit * width // BITS : (bit + 1) * width // BITS] = _WHITE
    return drawn


@lru_cache(maxsize=8)
def _film(numbers: tuple[int, ...], size: tuple[int, int]) -> bytes:
    return b"".join(frame(number, size).tobytes() for number in numbers)


def film(numbers: Iterable[int], size: tuple[int, int] = SIZE) -> bytes:
    """Return the frames of these numbers as raw RGB."""
    return _film(tuple(numbers), size)


def number(shown: Frame) -> int:
    """Read the number of a whole frame, whichever way it is turned."""
    found = upright(shown)
    height, width = found.shape[:2]
    middle = found[height // 2 - height // 16 : height // 2 + height // 16].mean(axis=(0, 2))
    edge = width / BITS
    means = [middle[int(bit * edge + edge / 4) : int(bit * edge + 3 * edge / 4) + 1].mean() for bit in range(BITS)]
    return sum(int(mean > _GREY) << bit for bit, mean in enumerate(means))


def numbers(frames: Iterable[Frame]) -> list[int]:
    """Read the numbers of frames."""
    return [number(each) for each in frames]


def turned(shown: Frame, orientation: int) -> Frame:
    """Return a frame in one of eight orientations: turned clockwise by so many quarters, from 4 on mirrored before."""
    return np.rot90(shown[:, ::-1] if orientation >= 4 else shown, -(orientation % 4))


def orientation(shown: Frame) -> int:
    """Return the orientation in which a frame is shown, by its colours."""
    found = corners(shown).reshape(2, 2, 3)
    wanted = COLORS.reshape(2, 2, 3)
    misses = [np.abs(found - turned(wanted, way).astype(np.float64)).sum() for way in range(8)]
    return int(np.argmin(misses))


def upright(shown: Frame) -> Frame:
    """Return a frame as it was drawn."""
    way = orientation(shown)
    back = np.rot90(shown, way % 4)
    return back[:, ::-1] if way >= 4 else back


def corners(shown: Frame) -> NDArray[np.float64]:
    """Return the mean colours [4, 3] about the centres of the quadrants."""
    height, width = shown.shape[:2]
    rows, columns = (int(height * 0.22), int(height * 0.81)), (width // 4, 3 * width // 4)
    spots = [shown[max(y - 2, 0) : y + 2, max(x - 2, 0) : x + 2] for y in rows for x in columns]
    means: NDArray[np.float64] = np.stack([spot.reshape(-1, 3).mean(axis=0) for spot in spots])
    return means


def differ(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> float:
    """Return the mean absolute difference of pictures of one size, in levels of 255."""
    return float(np.abs(first.astype(np.int16) - second.astype(np.int16)).mean())
