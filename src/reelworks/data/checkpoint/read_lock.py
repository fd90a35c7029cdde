"""Protect a checkpoint from deletion while a process reads it.

A reader holds a shared lock on the manifest, which the kernel releases when the process ends or crashes. On file
systems without such locks a deletion goes ahead, and the reader fails on missing files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reelworks.core import system
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import manifest


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Protect a checkpoint's folder from deletion until the block ends; raises `UserError` if it is gone."""
    file = path / manifest.FILE_NAME
    try:
        f = file.open("rb")
    except FileNotFoundError as error:
        raise _gone(path) from error
    with f:
        with suppress(OSError):
            system.lock(f.fileno(), shared=True, wait=True)
        if not file.exists():
            raise _gone(path)
        yield


def is_read(path: Path) -> bool:
    """Whether any process is reading a checkpoint."""
    try:
        with (path / manifest.FILE_NAME).open("rb") as f:
            system.lock(f.fileno())
    except OSError as error:
        return isinstance(error, BlockingIOError)  # others where there are no locks, or no such file
    return False


def _gone(path: Path) -> UserError:
    return UserError(
        "the checkpoint does not exist any more",
        code="no-such-checkpoint",
        field="checkpoint",
        value=str(path),
        remedy="choose another one; history.jsonl beside it says why it was deleted",
    )
