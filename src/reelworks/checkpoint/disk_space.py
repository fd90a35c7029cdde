"""Probe the file system of the checkpoints before training, and check its free space before each save."""

from __future__ import annotations

import errno
import fcntl
import shutil
from dataclasses import dataclass
from pathlib import Path

from reelworks.checkpoint import names
from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.core.units import told_bytes

# Errors of a full disk and of a full quota; the free bytes do not account for quotas.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Required free space, as a multiple of the estimated size of a save.
MARGIN = 1.02

_PROBE_BYTES = 1 << 16


@dataclass(frozen=True)
class Mount:
    """Result of probing a file system.

    Attributes:
        path: The folder with links resolved; it may lie on another disk than the run.
        free_bytes: Free bytes, without regard to quotas.
        locks: Whether files can be locked; if not, a second training in the same folder is not detected.
    """

    path: Path
    free_bytes: int
    locks: bool


def probe(folder: Path) -> Mount:
    """Write, sync, rename, lock and remove a small file in the folder of the checkpoints.

    Args:
        folder: `checkpoints/` of a run; created if it does not exist.

    Raises:
        UserError: One of these fails, as every save would; names the operation.
    """
    # Named like a save in progress, so that the next sweep removes it after a crash.
    temporary = folder / names.in_flight(0, names.fresh_id())
    target = folder / names.in_flight(0, names.fresh_id())
    doing = "be created"
    try:
        storage.mkdirs(folder)
        doing = "be written to"
        with storage.create(temporary) as file:
            file.write(bytes(_PROBE_BYTES))
            locks = _locks(file.fileno())
        doing = "rename files"
        storage.rename(temporary, target)
        storage.fsync_folder(folder)
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise _unwritable(folder, doing, error) from error
    finally:
        for path in (temporary, target):
            storage.rmtree_if_possible(path)
    return Mount(folder.resolve(), free_bytes, locks)


def _locks(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:
        return False
    return True


def _unwritable(folder: Path, doing: str, error: OSError) -> UserError:
    full = error.errno in FULL
    return UserError(
        f"the checkpoint folder cannot {doing} ({error.strerror or error})",
        code="checkpoints-unwritable",
        field="checkpoints",
        value=str(folder),
        remedy="free disk space or raise the quota, or choose another --output"
        if full
        else "fix its permissions or its disk, or choose another --output",
    )


def require(folder: Path, need_bytes: int, what: str = "a checkpoint") -> None:
    """Check that a folder's disk has room for `need_bytes` and a margin; `what` names them in the error.

    Raises:
        OSError: ENOSPC, the error that writing would raise later.
    """
    need_bytes, free_bytes = int(need_bytes * MARGIN), shutil.disk_usage(folder).free
    if free_bytes < need_bytes:
        raise OSError(errno.ENOSPC, f"{what} needs {told_bytes(need_bytes)}, {told_bytes(free_bytes)} are free")
