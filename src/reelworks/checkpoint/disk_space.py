"""The file system that checkpoints go to: tried out before training rests on it, asked for room before each save."""

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

# What a disk says that has no room, and a quota that has none; the latter does not show in the free bytes.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Room to ask for, as a multiple of what a save is estimated to take.
MARGIN = 1.02

_PROBE_BYTES = 1 << 16


@dataclass(frozen=True)
class Mount:
    """Result of trying out a file system.

    Attributes:
        path: The folder, links resolved: it may lie on another disk than the run.
        free_bytes: What a user may still write, quotas not known.
        locks: Whether files can be locked; if not, a second training is not noticed.
    """

    path: Path
    free_bytes: int
    locks: bool


def probe(folder: Path) -> Mount:
    """Write, make durable, rename, lock and remove a small file where checkpoints will lie.

    Args:
        folder: `checkpoints/` of a run; made if it is not there.

    Raises:
        UserError: One of these fails, so every save would; says which.
    """
    # A death in between leaves it to the next sweep, as it does a save.
    temporary = folder / names.in_flight(0, names.fresh_id())
    target = folder / names.in_flight(0, names.fresh_id())
    doing = "be made"
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
        raise _useless(folder, doing, error) from error
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


def _useless(folder: Path, doing: str, error: OSError) -> UserError:
    full = error.errno in FULL
    return UserError(
        f"the folder of checkpoints cannot {doing} ({error.strerror or error})",
        code="checkpoints-unwritable",
        field="checkpoints",
        value=str(folder),
        remedy="free disk space or raise the quota, or choose another --output"
        if full
        else "mend its permissions or its disk, or choose another --output",
    )


def require(folder: Path, need_bytes: int, what: str = "a checkpoint") -> None:
    """Check that a folder's disk has room for something, with a margin.

    Raises:
        OSError: ENOSPC, as the disk itself would say later.
    """
    need_bytes, free_bytes = int(need_bytes * MARGIN), shutil.disk_usage(folder).free
    if free_bytes < need_bytes:
        raise OSError(
            errno.ENOSPC, f"{what} needs {told_bytes(need_bytes)}, {told_bytes(free_bytes)} are free"
        )
