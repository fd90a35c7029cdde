"""Claims on parts of a job that several processes share, as locks on bytes of one file.

The system drops the locks of a process that dies, so that no claim outlives its holder.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Claims:
    """Claims of this process on parts by name; only one process at a time holds each."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def take(self, name: str, *, wait: bool = False) -> bool:
        """Claim a part, and return whether that succeeded; with `wait`, wait for another process to release it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, _offset(name))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def release(self, name: str) -> None:
        """Release a part."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, _offset(name))

    def close(self) -> None:
        """Release all parts."""
        os.close(self._fd)


def _offset(name: str) -> int:
    return int(name[:12], 16)
