"""What has reached the disk, as far as fsync promises it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reelworks.core import storage


class Synced:
    """Lengths of files that grow, and names of folders, at their last fsync, by inode."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self._names: dict[int, set[str]] = {}

    def sync(self, fd: int) -> None:
        """Note what an fsync of an open file or folder makes durable."""
        now = os.fstat(fd)
        if stat.S_ISDIR(now.st_mode):
            self._names[now.st_ino] = set(os.listdir(fd))
        else:
            self._bytes[now.st_ino] = now.st_size

    def has_content(self, file: Path) -> bool:
        """Return whether all that a file holds is durable."""
        now = file.stat()
        return self._bytes.get(now.st_ino) == now.st_size

    def has_name(self, file: Path) -> bool:
        """Return whether a file's entry in its folder is durable."""
        return file.name in self._names.get(file.parent.stat().st_ino, ())


def leave_to_the_system() -> None:
    """Let an fsync wait for no disk in this process: one that dies takes nothing back, and no test cuts the power.

    What is durable when is proved by who stands in place of `os.fsync`.
    """

    def fsync(fd: int) -> None:
        os.fstat(fd)  # which fails where a file is closed, too

    os.fsync = fsync


@contextmanager
def before_renames(check: Callable[[Synced, Path], None]) -> Iterator[None]:
    """Call `check` with what is durable and the path that is to be renamed, before each rename in the block."""
    synced = Synced()

    def guard(call: str, path: Path) -> None:
        if call == "rename":
            check(synced, path)

    with pytest.MonkeyPatch.context() as patch, storage.guarded(guard):
        patch.setattr(os, "fsync", synced.sync)
        yield
