"""Allow one writer per folder: one training per run, one scan per catalog.

Uses the kernel's file lock where the file system supports it: it ends with its process, however that dies, and no
process id has to be trusted. A fork of the process has no part in it. Elsewhere a heartbeat file is used
(`data.run.heartbeat`), which a process that is stopped for long can lose; so call `LockHandle.check` before publishing anything.
"""

from __future__ import annotations

import os
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path

from reelworks.core import files, system
from reelworks.core.errors import UserError
from reelworks.data.run import heartbeat
from reelworks.data.run.heartbeat import LockedError, LockOwner
from reelworks.data.run.process import Process

_FREE_BY_HAND = "wait for it, stop it with SIGTERM, on Windows Ctrl-C (it saves and leaves), or choose another --output"
_MOST_CHARACTERS = 4096
_ATTEMPTS, _PROBE_SECONDS = 20, 0.02  # somebody may look at this moment whether the lock is held
# Of this process. A lock is of an open file, which a fork would otherwise keep open after its parent's end.
_files = weakref.WeakSet[FileIO]()
_UNKNOWN = LockOwner(Process(0, "", 0), socket.gethostname(), 0.0, "")  # the disk was full when it took the lock


def _close_files() -> None:
    for file in _files:
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_files)


class LockLost(UserError):  # noqa: N818
    """Another process has taken over the folder, or it is gone: this one must not publish anything in it any more."""


class LockHandle:
    """A held lock."""

    def __init__(self, path: Path, doing: str, field: str, is_ours: Callable[[], bool]) -> None:
        self._path, self._doing, self._field, self._is_ours = path, doing, field, is_ours

    def check(self) -> None:
        """Check that the lock is still held; call this right before publishing something.

        Raises:
            LockLost: Another process took over the lock, or its file was removed.
            OSError: The lock file cannot be read.
        """
        if self._is_ours():
            return
        folder, owner = self._path.parent, holder(self._path)
        if owner is not None:
            problem = f"another {self._doing} ({owner}) has taken over this folder"
            remedy = "let the other process continue; everything that this one published before is intact"
        else:
            problem = "its lock file was removed" if folder.is_dir() else "this folder is not there any more"
            remedy = (
                "let nothing remove or unmount it meanwhile, and give the command again: it goes on with what is there"
            )
        raise LockLost(
            f"{problem}, so this {self._doing} must not write into it any more",
            code="lock-lost",
            field=self._field,
            value=str(folder),
            remedy=remedy,
        )


@contextmanager
def hold(
    path: Path, *, doing: str = "training", field: str = "output", remedy: str = _FREE_BY_HAND
) -> Iterator[LockHandle]:
    """Hold an exclusive lock on a file, whose folder is created if missing.

    Messages name the activity (`doing`, one word), the recipe key or option of the folder (`field`) and the `remedy`.
    """
    with ExitStack() as stack:
        try:
            with files.writing(field, path.parent):
                is_ours = _take(path, stack)
        except LockedError as error:
            raise UserError(
                f"another {doing} is running in this folder ({error})",
                code="run-locked",
                field=field,
                value=str(path.parent),
                remedy=remedy,
            ) from error
        yield LockHandle(path, doing, field, is_ours)


def holder(path: Path) -> LockOwner | None:
    """Return which process holds a lock; None if none does, whatever the file says.

    A heartbeat's file, where there are no locks, counts for as long as it was renewed lately.
    """
    if _is_locked(path):
        return LockOwner.parse(_text(path)) or _UNKNOWN
    beats = path.with_name(f"{path.name}.heartbeat")
    with suppress(OSError):
        owner = LockOwner.parse(_text(beats))
        lately = time.time() - beats.stat().st_mtime < heartbeat.LOST_SECONDS
        if owner is not None and lately and (owner.host != socket.gethostname() or owner.process.lives()):
            return owner
    return None


def ask_holder(path: Path) -> bool:
    """Ask the process of this machine that holds a kernel's lock to save and end; returns whether there is one.

    What a file says is not enough: the lock is held, and by the process that has the id in this file now and had it when
    it took the lock. Of a heartbeat's file nobody knows who wrote it.
    """
    owner = LockOwner.parse(_text(path)) if _is_locked(path) else None
    return owner is not None and owner.host == socket.gethostname() and owner.process.ask_to_end()


def _is_locked(path: Path) -> bool:
    """Return whether a process holds the kernel's lock on a file, on this machine or another."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | system.OWN_FILE), "rb") as f:
            system.lock(f.fileno(), shared=True)  # for a moment that whoever takes the lock waits for
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _text(path: Path) -> str:
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | system.OWN_FILE)
        with os.fdopen(fd, encoding="utf-8", errors="replace") as f:
            return f.read(_MOST_CHARACTERS)
    return ""


def _take(path: Path, stack: ExitStack) -> Callable[[], bool]:
    path.parent.mkdir(parents=True, exist_ok=True)
    me = LockOwner.here()
    with suppress(system.NoLocks):
        return stack.enter_context(_locked(path, me))
    return stack.enter_context(heartbeat.beating(path.with_name(f"{path.name}.heartbeat"), me))


@contextmanager
def _locked(path: Path, me: LockOwner) -> Iterator[Callable[[], bool]]:
    """Hold the kernel's lock on a file, and write the holder into it."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | system.OWN_FILE, 0o666), "r+b", buffering=0) as f:
        _files.add(f)
        for attempt in range(_ATTEMPTS):
            try:
                system.lock(f.fileno())
                break
            except BlockingIOError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise LockedError(LockOwner.parse(_text(path))) from error
                time.sleep(_PROBE_SECONDS)
        f.truncate(0)
        # The content only informs people, so a full disk must not fail here: freeing disk space needs this lock.
        with suppress(OSError):
            os.write(f.fileno(), me.to_json().encode())
        try:
            yield lambda: not f.closed and _is_file(path, f.fileno())
        finally:
            if not f.closed:
                f.truncate(0)


def _is_file(path: Path, fd: int) -> bool:
    """Return whether the open file is still the one at `path`; another process could hold a lock on a new one."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(fd))
    return False
