"""Allow one writer per folder: one training per run, one scan per catalog.

Uses the kernel's file lock where the file system supports it: it ends with its process, however that dies, and no
process id has to be trusted. Elsewhere a heartbeat file is used (`run.heartbeat`), which a process that is stopped
for long can lose; so call `LockHandle.check` before publishing anything.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.run import heartbeat
from reelworks.run.heartbeat import LockedError, LockOwner

_FREE_BY_HAND = "wait for it, stop it with SIGTERM (it saves and leaves), or choose another --output"
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})


class LockLost(UserError):  # noqa: N818
    """Another process has taken over the folder: this one must not publish anything in it any more."""


class LockHandle:
    """A held lock."""

    def __init__(self, folder: Path, doing: str, field: str, is_ours: Callable[[], bool]) -> None:
        self._folder, self._doing, self._field, self._is_ours = folder, doing, field, is_ours

    def check(self) -> None:
        """Check that the lock is still held; call this right before publishing something.

        Raises:
            LockLost: Another process took over the lock, or its file was removed.
            OSError: The lock file cannot be read.
        """
        if not self._is_ours():
            raise LockLost(
                f"another {self._doing} has taken over this folder, so this one must not write into it any more",
                code="lock-lost",
                field=self._field,
                value=str(self._folder),
                remedy="let the other process continue; everything that this one published before is intact",
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
            is_ours = _take(path, stack)
        except LockedError as error:
            raise UserError(
                f"another {doing} is running in this folder ({error})",
                code="run-locked",
                field=field,
                value=str(path.parent),
                remedy=remedy,
            ) from error
        except OSError as error:
            raise UserError(
                f"the folder cannot be written ({error.strerror})",
                code="file-unwritable",
                field=field,
                value=str(path.parent),
                remedy="choose a folder you may write to with --output DIR, or fix its permissions",
            ) from error
        yield LockHandle(path.parent, doing, field, is_ours)


def holder(path: Path) -> LockOwner | None:
    """Return which process holds a lock, as far as its file tells; takes nothing, and so disturbs nobody.

    A process of this machine that has ended holds nothing. Of other machines, a heartbeat tells if it is recent; a kernel's
    lock does not tell whether its holder still lives.
    """
    beats = path.with_name(f"{path.name}.heartbeat")
    for file in (path, beats):
        with suppress(OSError):
            owner = LockOwner.parse(file.read_text())
            if owner is None:
                continue
            if owner.host == socket.gethostname():
                if lives(owner.pid):
                    return owner
            elif file is path or time.time() - file.stat().st_mtime < heartbeat.LOST_SECONDS:
                return owner
    return None


def lives(pid: int) -> bool:
    """Return whether a process of this machine still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with suppress(OSError):  # one that has ended, and whose parent has not asked yet
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def _take(path: Path, stack: ExitStack) -> Callable[[], bool]:
    path.parent.mkdir(parents=True, exist_ok=True)
    me = LockOwner.here()
    try:
        return stack.enter_context(_locked(path, me))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return stack.enter_context(heartbeat.beating(path.with_name(f"{path.name}.heartbeat"), me))


@contextmanager
def _locked(path: Path, me: LockOwner) -> Iterator[Callable[[], bool]]:
    """Hold the kernel's lock on a file, and write the holder into it."""
    with path.open("a+") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            f.seek(0)
            raise LockedError(LockOwner.parse(f.read())) from error
        f.truncate(0)
        # The content only informs people, so a full disk must not fail here: freeing disk space needs this lock.
        with suppress(OSError):
            os.write(f.fileno(), me.to_json().encode())
        try:
            yield lambda: _is_file(path, f.fileno())
        finally:
            f.truncate(0)


def _is_file(path: Path, fd: int) -> bool:
    """Return whether the open file is still the one at `path`; another process could hold a lock on a new one."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
