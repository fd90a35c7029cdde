"""Calls for worker processes, and values that make trouble there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import killing
import numpy as np
from numpy.typing import NDArray

BYTES_THAT_TAKE_A_WHILE = 150_000_000


def double(value: int) -> int:
    return 2 * value


def invert(value: int) -> float:
    return 1 / value


def arrays(_: int) -> list[NDArray[np.generic]]:
    """Arrays as decoders give them: large, cut out of larger ones, empty, of no dimension."""
    whole = np.arange(3_000_000, dtype=np.int32).reshape(1000, 3000)
    return [whole, whole[10:20, 5:], whole.T, whole[:0], np.array(7.0)]


def die_while_sending(seconds: float) -> NDArray[np.uint8]:
    """Return an array, and be killed some time later; it takes longer to send."""
    threading.Timer(seconds, killing.kill_self).start()
    return np.ones(BYTES_THAT_TAKE_A_WHILE, dtype=np.uint8)


def hang(begun: Path) -> None:
    """Make a file, and then nothing for long."""
    begun.touch()
    time.sleep(60)


@dataclass(frozen=True)
class MadeBy:
    """A value that is unpickled by a call."""

    function: Callable[..., object]
    arguments: tuple[object, ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        return self.function, self.arguments


def lock(_: object) -> object:
    """Return what cannot be pickled."""
    return threading.Lock()


def raise_lock(_: object) -> None:
    """Raise what cannot be pickled."""
    raise ValueError(threading.Lock())


def is_none(value: object) -> bool:
    return value is None


def filled(value_and_shape: tuple[int, tuple[int, ...]]) -> NDArray[np.uint8]:
    value, shape = value_and_shape
    return np.full(shape, value, dtype=np.uint8)


def process_id(begun: Path) -> int:
    """Return the process that runs the call, once the call that runs beside it has begun."""
    while not begun.exists():
        time.sleep(0.01)
    return os.getpid()
