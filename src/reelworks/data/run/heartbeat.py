"""Lock for file systems without locks: a file that its holder renews; another process takes over a stale one.

A holder rewrites its file every `BEAT_SECONDS`. A process that wants the lock watches an existing file: if it changes,
the holder is alive; if it does not for `LOST_SECONDS`, the holder is gone and the file is replaced. Only changes and
the watcher's own clock matter, so clocks that differ between machines do no harm.

A holder that is stopped for that long (a paused machine, storage that hangs) loses the lock without noticing. That is
why it checks for its own token before it publishes. A short race remains between this check and the publishing, which
a kernel lock does not have.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from reelworks.core import system
from reelworks.core.log import logger
from reelworks.data.run.process import Process


@dataclass(frozen=True)
class LockOwner:
    """A process that holds a lock.

    Attributes:
        since: When the process took the lock, in seconds since 1970, by its own clock.
        token: Random text that distinguishes holders.
    """

    process: Process
    host: str
    since: float
    token: str

    @classmethod
    def here(cls) -> Self:
        """Return an owner for this process, with the present time and a new token."""
        return cls(Process.here(), socket.gethostname(), time.time(), uuid.uuid4().hex)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the result of `to_json`; return None for any other text."""
        with suppress(ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
            owner = json.loads(text)
            process = Process.parse(owner["process"])
            datetime.fromtimestamp(since := float(owner["since"]))
            return cls(process, str(owner["host"]), since, str(owner["token"]))
        return None

    def to_json(self, **more: int) -> str:
        """Return the owner, and more fields, as one line of JSON."""
        return json.dumps({**asdict(self), **more})

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since).astimezone()
        return f"process {self.process.pid} on {self.host}, since {since:%Y-%m-%d %H:%M:%S %z}"


class LockedError(Exception):
    """Another process holds the lock; `holder` is None if it is not known which."""

    def __init__(self, holder: LockOwner | None) -> None:
        self.holder = holder
        super().__init__("by an unknown process" if holder is None else str(holder))


BEAT_SECONDS = 10.0
LOST_SECONDS = 60.0
# If several processes replace an abandoned file at once, the last one wins; each waits this long to see which.
_SETTLE_SECONDS = 2.0


@contextmanager
def beating(path: Path, me: LockOwner) -> Iterator[Callable[[], bool]]:
    """Hold a heartbeat file, and yield a function that returns whether it is still held.

    Raises:
        LockedError: Another process holds the file.
        OSError: The file cannot be written.
    """
    fd = _take(path, me)

    def is_ours() -> bool:
        return _holder(path) == me

    def beat() -> None:
        # Writes after another process replaced the file do not reach the new one.
        for beats in itertools.count(1):
            if stop.wait(BEAT_SECONDS):
                return
            with suppress(OSError):  # the storage may be unavailable for a moment
                if not is_ours():
                    return
                _write(fd, me, beats)

    stop = threading.Event()
    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield is_ours
    finally:
        stop.set()
        thread.join()
        with suppress(OSError):
            was_ours = is_ours()
            os.close(fd)  # before the file is removed, which Windows refuses for an open one
            if was_ours:
                path.unlink()


def _take(path: Path, me: LockOwner) -> int:
    """Create the file, or replace one that nobody renews; return its descriptor."""
    while True:
        with suppress(FileExistsError):
            return _create(path, me)
        seen = _snapshot(path)
        if seen is not None and _is_abandoned(path, seen):
            return _replace(path, me, seen)


def _is_abandoned(path: Path, seen: tuple[int, str]) -> bool:
    """Watch a file until it counts as abandoned; False if it is removed in the meantime."""
    holder = LockOwner.parse(seen[1])
    logger.info(
        f"this folder is locked ({LockedError(holder)}); waiting up to {LOST_SECONDS:.0f} s for a sign that it is alive"
    )
    until = time.monotonic() + LOST_SECONDS
    while time.monotonic() < until:
        time.sleep(BEAT_SECONDS / 10)
        now = _snapshot(path)
        if now is None:
            return False
        if now != seen:
            raise LockedError(LockOwner.parse(now[1]))
    return True


def _replace(path: Path, me: LockOwner, abandoned: tuple[int, str]) -> int:
    temporary = path.with_name(f"{path.name}.{me.token}")
    os.close(_create(temporary, me))  # Windows renames no open file
    try:
        if _snapshot(path) == abandoned:
            system.patiently(lambda: temporary.replace(path))
            time.sleep(_SETTLE_SECONDS)
        fd = os.open(path, os.O_RDWR | system.BINARY)
        if (holder := _holder(path)) != me:
            os.close(fd)
            raise LockedError(holder)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return fd


def _create(path: Path, me: LockOwner) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | system.BINARY, 0o666)
    _write(fd, me, 0)
    return fd


def _write(fd: int, me: LockOwner, beats: int) -> None:
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, me.to_json(beats=beats).encode())
    os.fsync(fd)


def _holder(path: Path) -> LockOwner | None:
    seen = _snapshot(path)
    return None if seen is None else LockOwner.parse(seen[1])


def _snapshot(path: Path) -> tuple[int, str] | None:
    """Return modification time and content, or None; opens the file so that network file systems refresh their cache."""
    with suppress(FileNotFoundError), path.open(encoding="utf-8") as f:
        return os.fstat(f.fileno()).st_mtime_ns, f.read()
    return None
