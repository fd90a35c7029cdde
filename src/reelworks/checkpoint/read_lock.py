"""Reading a checkpoint that a training might delete meanwhile.

A reader holds a shared lock on the manifest, which the kernel drops when the process ends, however it ends. On
file systems without such locks a deletion is not held up, and the reader fails for want of files.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reelworks.checkpoint import manifest
from reelworks.core.errors import UserError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Keep a checkpoint's folder from being deleted until the block ends.

    Raises:
        UserError: It is not there any more.
    """
    file = path / manifest.FILE_NAME
    try:
        f = file.open("rb")
    except FileNotFoundError as error:
        raise _gone(path) from error
    with f:
        with suppress(OSError):
            fcntl.flock(f, fcntl.LOCK_SH)
        if not file.exists():
            raise _gone(path)
        yield


def is_read(path: Path) -> bool:
    """Say whether any process reads a checkpoint."""
    try:
        with (path / manifest.FILE_NAME).open("rb") as f:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _gone(path: Path) -> UserError:
    return UserError(
        "the checkpoint is not there any more",
        code="no-such-checkpoint",
        field="checkpoint",
        value=str(path),
        remedy="name another one; `reelworks checkpoints explain` says why it went",
    )
