"""Reading from storage that has moments: try again before believing an error."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# What network storage says for a while and then takes back; it tells nothing about the file.
_PASSING = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.EINTR,
        errno.EBUSY,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EPIPE,
    }
)
WAITS_SECONDS = (0.1, 0.5, 2.0)


def is_transient(error: BaseException) -> bool:
    """Tell an error of the storage, which may be gone in a moment, from one of the file."""
    return isinstance(error, OSError) and error.errno in _PASSING


def with_retries(work: Callable[[], T]) -> T:
    """Do `work`, again after a pause if storage errs in passing; `len(WAITS_SECONDS) + 1` tries in all.

    Raises:
        OSError: Another error, or the passing one did not pass.
    """
    for seconds in WAITS_SECONDS:
        try:
            return work()
        except OSError as error:
            if not is_transient(error):
                raise
        time.sleep(seconds)
    return work()
