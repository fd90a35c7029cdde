"""One trainer a run folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reelworks.core.errors import UserError


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the kernel drops it when the process dies, however it dies.

    Raises:
        UserError: Another process holds it.
    """
    with path.open("a+") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            f.seek(0)
            raise UserError(
                f"another training is running in this folder ({_holder(f.read())})",
                field="output",
                value=str(path.parent),
                remedy="wait for it, stop it with SIGTERM (it saves and leaves), or choose another --output",
            ) from error
        f.truncate(0)
        f.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        f.flush()
        try:
            yield
        finally:
            f.truncate(0)


def _holder(text: str) -> str:
    try:
        holder = json.loads(text)
        return f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError):
        return "its process is not known"
