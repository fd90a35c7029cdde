"""Writes, renames and removals of files, all of which pass a guard, so that tests can inject disk faults.

Each function makes one system call; only a write that the system cuts short is continued by another.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from typing_extensions import Buffer

from reelworks.core import digests, system

# Called before "open", "write", "fsync", "rename", "unlink", "mkdir" or "rmdir" of a path. It may raise an
# OSError, end the process, or return a maximum number of bytes for a write.
Guard = Callable[[str, Path], int | None]

_guard: Guard | None = None
_BUFFER_BYTES = 1 << 20


@contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Call a guard before each operation of this process while the block runs; for tests that inject faults."""
    global _guard
    former, _guard = _guard, guard
    try:
        yield
    finally:
        _guard = former


def _ask(call: str, path: Path) -> int | None:
    return None if _guard is None else _guard(call, path)


class _Raw(io.FileIO):
    """Unbuffered write-only file that computes the checksum of the bytes written."""

    def __init__(self, path: Path, mode: str) -> None:
        _ask("open", path)
        super().__init__(str(path), mode)
        self.path, self.checksum = path, digests.running()

    def write(self, data: Buffer) -> int:
        with memoryview(data).cast("B") as view:
            try:
                limit = _ask("write", self.path)
                written = super().write(view if limit is None else view[:limit])
            except OSError as error:  # which names no file
                error.filename = error.filename or str(self.path)
                raise
            self.checksum.update(view[:written])
            return written


@contextmanager
def create(path: Path, *, on_close: Callable[[int, str], None] | None = None) -> Iterator[BinaryIO]:
    """Open a new file for writing, and fsync it at the end of the block; its folder entry is not yet durable then.

    At the end, `on_close` is called with the file's size in bytes and its checksum.

    Raises:
        FileExistsError: The path exists.
        OSError: Writing failed; the incomplete file remains.
    """
    with _Raw(path, "x") as raw:  # which drops what is left in the buffer after an error
        buffered = io.BufferedWriter(raw, _BUFFER_BYTES)
        yield buffered
        buffered.flush()
        fsync(raw.fileno(), path)
        if on_close is not None:
            on_close(raw.tell(), raw.checksum.hexdigest())


def append(path: Path, data: bytes) -> None:
    """Append to a file, which is created if missing, with one write unless the system cuts it short."""
    with _Raw(path, "a") as raw:
        while data:
            data = data[raw.write(data) :]


def fsync(fd: int, path: Path) -> None:
    """Make an open file, or the entries of an open folder, durable."""
    _ask("fsync", path)
    os.fsync(fd)


def fsync_folder(path: Path) -> None:
    """Make the entries of a folder durable."""
    system.sync_folder(path, lambda fd: fsync(fd, path))


def rename(path: Path, target: Path) -> None:
    """Rename a file or folder; an existing file at the target is replaced, but no device or pipe, which others need."""
    _ask("rename", path)
    if is_special(target):
        raise OSError(errno.EEXIST, "it is a device or a pipe, and no file", str(target))
    system.patiently(lambda: path.replace(target))


def is_special(path: Path) -> bool:
    """Whether a path is a device, a pipe or a socket, such as /dev/null."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def unlink(path: Path) -> None:
    """Remove a file or link."""
    _ask("unlink", path)
    system.patiently(path.unlink)


def mkdir(path: Path) -> None:
    """Create a folder; its parent must exist, and it must not."""
    _ask("mkdir", path)
    path.mkdir()


def mkdirs(path: Path) -> None:
    """Create a folder and its missing parents durably; do nothing if it exists."""
    if not path.is_dir():
        mkdirs(path.parent)
        mkdir(path)
        fsync_folder(path.parent)


def rmtree(path: Path) -> None:
    """Remove a file, a link, or a folder and its contents; if one cannot be removed, the rest remains with it."""
    if path.is_symlink() or not path.is_dir():
        unlink(path)
        return
    for inner in sorted(path.iterdir()):
        rmtree(inner)
    _ask("rmdir", path)
    system.patiently(path.rmdir)


def rmtree_if_possible(path: Path) -> None:
    """Call `rmtree` and ignore its errors."""
    with suppress(OSError):
        rmtree(path)
