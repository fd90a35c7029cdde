"""Every change to a disk that a checkpoint rests on, through one door, so that faults can stand in its way.

Nothing here adds to what the system does: one call is one system call, but for a write that the system cuts
short, which goes on where it stopped.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from typing_extensions import Buffer

from reelworks.core import digests

# Called before "open", "write", "fsync", "rename", "unlink", "mkdir" or "rmdir" of a path. It may raise an
# OSError, end the process, or allow a write only that many bytes.
Guard = Callable[[str, Path], int | None]

_guard: Guard | None = None
_BUFFER_BYTES = 1 << 20


@contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Put a guard in the way of all calls in this process; for tests of what must survive faults."""
    global _guard
    former, _guard = _guard, guard
    try:
        yield
    finally:
        _guard = former


def _ask(call: str, path: Path) -> int | None:
    return None if _guard is None else _guard(call, path)


class _Raw(io.RawIOBase):
    """A file that is only written, from its start or at its end; sums up what reaches it on the way."""

    def __init__(self, path: Path, flags: int) -> None:
        _ask("open", path)
        self.path, self._fd, self._at = path, os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o666), 0
        self.checksum = digests.running()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Buffer) -> int:
        with memoryview(data).cast("B") as view:
            if self._fd < 0:
                # A buffer that failed is flushed once more when it is collected: by then the number of the
                # descriptor may be another file's.
                return len(view)
            limit = _ask("write", self.path)
            written = os.write(self._fd, view if limit is None else view[:limit])
            self.checksum.update(view[:written])
            self._at += written
            return written

    def release(self) -> None:
        """Let go of the file; closing the stream does not, so that it can be made durable after that."""
        os.close(self._fd)
        self._fd = -1


@contextmanager
def create(path: Path, *, told: Callable[[int, str], None] | None = None) -> Iterator[BinaryIO]:
    """Write a new file; it is durable, but not its name, when the block ends without an error.

    Args:
        path: Where nothing may be yet.
        told: Called at the end with the file's size and the checksum of what was written.

    Raises:
        FileExistsError: There is something.
        OSError: It could not be written whole; what there is of it stays.
    """
    raw = _Raw(path, os.O_EXCL)
    try:
        buffered = io.BufferedWriter(raw, _BUFFER_BYTES)
        yield buffered
        buffered.close()
        fsync(raw.fileno(), path)
        if told is not None:
            told(raw.tell(), raw.checksum.hexdigest())
    finally:
        raw.release()


def append(path: Path, data: bytes) -> None:
    """Append to a file, made if it is not there; with one write, unless the system cuts it short."""
    raw = _Raw(path, os.O_APPEND)
    try:
        while data:
            data = data[raw.write(data) :]
    finally:
        raw.release()


def fsync(fd: int, path: Path) -> None:
    """Make a file, or a folder's entries, durable."""
    _ask("fsync", path)
    os.fsync(fd)


def fsync_folder(path: Path) -> None:
    """Make the entries of a folder durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fsync(fd, path)
    finally:
        os.close(fd)


def rename(path: Path, target: Path) -> None:
    """Rename; a file that lies at the target is replaced."""
    _ask("rename", path)
    path.rename(target)


def unlink(path: Path) -> None:
    """Remove a file or link."""
    _ask("unlink", path)
    path.unlink()


def mkdir(path: Path) -> None:
    """Make a folder whose parent is there.

    Raises:
        FileExistsError: There is something already.
    """
    _ask("mkdir", path)
    path.mkdir()


def mkdirs(path: Path) -> None:
    """Make a folder and the parents that it lacks, durably; nothing happens where it is there."""
    if not path.is_dir():
        mkdirs(path.parent)
        mkdir(path)
        fsync_folder(path.parent)


def rmtree(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it.

    Raises:
        OSError: Something could not be removed; the rest of it stays.
    """
    if path.is_symlink() or not path.is_dir():
        unlink(path)
        return
    for inner in sorted(path.iterdir()):
        rmtree(inner)
    _ask("rmdir", path)
    path.rmdir()


def rmtree_if_possible(path: Path) -> None:
    """Remove as much as can be removed now."""
    with suppress(OSError):
        rmtree(path)
