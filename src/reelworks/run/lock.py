"""One writer a folder: one training a run, one scan a catalog."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from reelworks.core.errors import UserError

_FREE_BY_HAND = "wait for it, stop it with SIGTERM (it saves and leaves), or choose another --output"


@contextmanager
def hold(
    path: Path, *, doing: str = "training", field: str = "output", remedy: str = _FREE_BY_HAND
) -> Iterator[None]:
    """Hold an exclusive lock; the kernel drops it when the process dies, however it dies.

    Args:
        path: The lock's file; its folder is made if it is not there.
        doing: What the lock is held for, in one word.
        field: The recipe key or option that names the folder.
        remedy: What to do when another process holds it.

    Raises:
        UserError: Another process holds it, or the folder cannot be written.
    """
    with _open(path, field) as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            f.seek(0)
            raise UserError(
                f"another {doing} is running in this folder ({_holder(f.read())})",
                field=field,
                value=str(path.parent),
                remedy=remedy,
            ) from error
        except OSError as error:  # some network file systems have no locks
            raise _not_writable(path, field, error) from error
        f.truncate(0)
        f.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        f.flush()
        try:
            yield
        finally:
            f.truncate(0)


def _open(path: Path, field: str) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+")
    except OSError as error:
        raise _not_writable(path, field, error) from error


def _not_writable(path: Path, field: str, error: OSError) -> UserError:
    return UserError(
        f"the folder cannot be written ({error.strerror})",
        field=field,
        value=str(path.parent),
        remedy="choose a folder you may write to with --output DIR, or mend its permissions",
    )


def _holder(text: str) -> str:
    try:
        holder = json.loads(text)
        return f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "its process is not known"
