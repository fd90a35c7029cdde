"""One writer a folder: one training a run, one scan a catalog.

The kernel's lock serves where the file system has locks: it ends with its process, however that dies, and no
process id has to be trusted. Elsewhere a heartbeat serves (`run.heartbeat`), which a holder that stands still
for long can lose; so whoever publishes something asks `LockHandle.check` first.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.run import heartbeat
from reelworks.run.holder import LockedError, LockOwner

_FREE_BY_HAND = "wait for it, stop it with SIGTERM (it saves and leaves), or choose another --output"
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})


class LockLost(UserError):  # noqa: N818
    """Another process has taken the folder over: nothing may be published in it any more."""


class LockHandle:
    """A lock that was taken."""

    def __init__(self, folder: Path, doing: str, field: str, is_ours: Callable[[], bool]) -> None:
        self._folder, self._doing, self._field, self._is_ours = folder, doing, field, is_ours

    def check(self) -> None:
        """Ask right before something is published.

        Raises:
            LockLost: The lock was taken over, or its file removed.
            OSError: The file system does not answer.
        """
        if not self._is_ours():
            raise LockLost(
                f"another {self._doing} has taken this folder over, so this one must not write into it any more",
                code="lock-lost",
                field=self._field,
                value=str(self._folder),
                remedy="let the other one go on; what was published before is as it was",
            )


@contextmanager
def hold(
    path: Path,
    *,
    doing: str = "training",
    field: str = "output",
    remedy: str = _FREE_BY_HAND,
) -> Iterator[LockHandle]:
    """Hold an exclusive lock.

    Args:
        path: The lock's file; its folder is made if it is not there.
        doing: What the lock is held for, in one word.
        field: The recipe key or option that names the folder.
        remedy: What to do when another process holds it.

    Raises:
        UserError: Another process holds it, or the folder cannot be written.
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
                remedy="choose a folder you may write to with --output DIR, or mend its permissions",
            ) from error
        yield LockHandle(path.parent, doing, field, is_ours)


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
    """Hold the kernel's lock on a file; the file says who holds it."""
    with path.open("a+") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            f.seek(0)
            raise LockedError(LockOwner.parse(f.read())) from error
        f.truncate(0)
        # For people alone. A full disk refuses it, and it is under this lock that room is made there.
        with suppress(OSError):
            os.write(f.fileno(), me.to_json().encode())
        try:
            yield lambda: _is_file(path, f.fileno())
        finally:
            f.truncate(0)


def _is_file(path: Path, fd: int) -> bool:
    """Say whether an open file still has its name: another one there could be locked by another process."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
