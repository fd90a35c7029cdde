"""A lock for file systems that have none: a file that its holder renews, and another may take when it is not.

A holder rewrites its file every `BEAT_SECONDS`. Who finds a file watches it: a change means that the holder
lives; none for `LOST_SECONDS` means that it is gone, and the file is replaced. Only the watcher's own clock
counts, and whether the file changed, so clocks that differ between machines do no harm.

A holder that is stopped for so long (a paused machine, storage that hangs) loses the lock without knowing.
That is why it looks for its own token before it publishes. Between that look and the publishing, moments
remain that no file can guard; a kernel's lock has none.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reelworks.core.log import logger
from reelworks.run.holder import LockedError, LockOwner

BEAT_SECONDS = 10.0
LOST_SECONDS = 60.0
# Of several that find a file abandoned at once the last to replace it stays; so long each waits to see.
_SETTLE_SECONDS = 2.0


@contextmanager
def beating(path: Path, me: LockOwner) -> Iterator[Callable[[], bool]]:
    """Hold a heartbeat file, and give the question whether it is still held.

    Args:
        path: The file.
        me: This process.

    Raises:
        Busy: Another process holds it.
        OSError: The file cannot be written.
    """
    heart = _Heart(path, me, _take(path, me))
    stop = threading.Event()
    thread = threading.Thread(target=heart.beat_until, args=(stop,), name="heartbeat", daemon=True)
    thread.start()
    try:
        yield heart.is_ours
    finally:
        stop.set()
        thread.join()
        with suppress(OSError):
            if heart.is_ours():
                path.unlink()
        os.close(heart.fd)


class _Heart:
    """The open file of a holder. What is written after another one replaced it goes to no name any more."""

    def __init__(self, path: Path, me: LockOwner, fd: int) -> None:
        self.path, self.me, self.fd = path, me, fd

    def beat_until(self, stop: threading.Event) -> None:
        beats = 0
        while not stop.wait(BEAT_SECONDS):
            beats += 1
            with suppress(OSError):  # storage that is away for a moment
                if not self.is_ours():
                    return
                _write(self.fd, self.me, beats)

    def is_ours(self) -> bool:
        seen = _look(self.path)
        holder = None if seen is None else LockOwner.parse(seen[1])
        return holder is not None and holder.token == self.me.token


def _take(path: Path, me: LockOwner) -> int:
    """Make the file, or replace one that nobody renews; returns it open."""
    while True:
        with suppress(FileExistsError):
            return _create(path, me)
        seen = _look(path)
        if seen is not None and _is_abandoned(path, seen):
            return _replace(path, me, seen)


def _is_abandoned(path: Path, seen: tuple[int, str]) -> bool:
    """Watch a file; False if it is removed meanwhile."""
    holder = LockOwner.parse(seen[1])
    logger.info(
        f"waiting up to {LOST_SECONDS:.0f} s to see whether this folder's holder lives: {LockedError(holder)}"
    )
    until = time.monotonic() + LOST_SECONDS
    while time.monotonic() < until:
        time.sleep(BEAT_SECONDS / 10)
        now = _look(path)
        if now is None:
            return False
        if now != seen:
            raise LockedError(LockOwner.parse(now[1]))
    return True


def _replace(path: Path, me: LockOwner, abandoned: tuple[int, str]) -> int:
    temporary = path.with_name(f"{path.name}.{me.token}")
    fd = _create(temporary, me)
    try:
        if _look(path) == abandoned:
            temporary.replace(path)
            time.sleep(_SETTLE_SECONDS)
        seen = _look(path)
        holder = None if seen is None else LockOwner.parse(seen[1])
        if holder is None or holder.token != me.token:
            raise LockedError(holder)
    except BaseException:
        os.close(fd)
        temporary.unlink(missing_ok=True)
        raise
    return fd


def _create(path: Path, me: LockOwner) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    _write(fd, me, 0)
    return fd


def _write(fd: int, me: LockOwner, beats: int) -> None:
    os.pwrite(fd, me.to_json(beats=beats).encode(), 0)
    os.fsync(fd)


def _look(path: Path) -> tuple[int, str] | None:
    """Time of change and content; None if it is not there. Opened anew, as network file systems then ask."""
    try:
        with path.open() as f:
            return os.fstat(f.fileno()).st_mtime_ns, f.read()
    except FileNotFoundError:
        return None
