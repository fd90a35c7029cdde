"""One scan a catalog."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reelworks.core.errors import UserError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder and be the only one who writes to it; the lock dies with the process.

    Raises:
        UserError: The folder cannot be written, or another scan is writing to it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / ".lock").open("a")
    except OSError as error:
        raise UserError(
            f"the catalog cannot be written ({error.strerror})",
            field="catalog",
            value=str(path),
            remedy="choose a folder you may write to with -o DIR, or mend its permissions",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                "another scan is writing to this catalog",
                field="catalog",
                value=str(path),
                remedy="wait until it has finished",
            ) from error
        yield
