"""Retries of reads from network storage, whose errors are often transient."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Errors that network storage recovers from; they say nothing about the file itself.
_TRANSIENT = frozenset((
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EPIPE,
    errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN,
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH,
))  # fmt: skip
WAITS_SECONDS = (0.1, 0.5, 2.0)


def is_transient(error: BaseException) -> bool:
    """Whether an error comes from the storage and may vanish on a retry, rather than from the file itself."""
    return isinstance(error, OSError) and error.errno in _TRANSIENT


def with_retries(work: Callable[[], T]) -> T:
    """Return `work()`, retried after transient storage errors; at most `len(WAITS_SECONDS) + 1` attempts."""
    for seconds in WAITS_SECONDS:
        try:
            return work()
        except OSError as error:
            if not is_transient(error):
                raise
        time.sleep(seconds)
    return work()
