"""States of files, by which the page sees that what it read of them has changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

FileStatus = tuple[int, int] | None  # time of change in nanoseconds and size; None if there is no such file
T = TypeVar("T")


def status(path: Path) -> FileStatus:
    """Return the state of a file."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def kept(read: Callable[[Path], T], most: int = 1 << 16) -> Callable[[Path], T]:
    """Return a function that reads a file unless it is as it was: a list of many is asked for again and again."""
    read_at = lru_cache(maxsize=most)(lambda path, _: read(path))
    return lambda path: read_at(path, status(path))
