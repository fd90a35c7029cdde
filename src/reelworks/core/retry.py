"""Retries of work on network storage, whose errors are often transient."""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# Errors that network storage recovers from; they say nothing about the file itself.
_TRANSIENT = frozenset((
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EPIPE,
    errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOTCONN,
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH,
    getattr(errno, "EREMOTEIO", errno.EIO),
))  # fmt: skip
WAITS_SECONDS = (0.1, 0.5, 2.0)
# After this time, clients of storages have been patient themselves: a question that fails then is not repeated.
LONG_SECONDS = 20.0


def is_transient(error: BaseException) -> bool:
    """Whether an error comes from the storage and may vanish on a retry, rather than from the file itself."""
    return isinstance(error, OSError) and error.errno in _TRANSIENT


def with_retries(
    work: Callable[[], T],
    *,
    waits_seconds: Sequence[float] | None = None,
    may_vanish: Callable[[Exception], bool] = is_transient,
    most_seconds: float = math.inf,
    wait: Callable[[float], object] | None = None,
) -> T:
    """Return `work()`, retried after errors that may vanish; one attempt more than there are waits.

    Args:
        work: Reads or writes something.
        waits_seconds: Pauses before further attempts; None for `WAITS_SECONDS`.
        may_vanish: Whether an error may vanish on a retry; others are raised at once.
        most_seconds: No attempt begins later than this after the first.
        wait: Waits so many seconds, None by sleeping; an error that it raises ends the attempts.
    """
    began = time.monotonic()
    for seconds in WAITS_SECONDS if waits_seconds is None else waits_seconds:
        try:
            return work()
        except Exception as error:
            if not may_vanish(error) or time.monotonic() - began > most_seconds:
                raise
        (wait or time.sleep)(seconds)
    return work()


class Asked:
    """Asks a storage, patiently while it answers: after `many` errors in a row that may vanish, once for each.

    If it is silent then for long, it is not asked for as long again, and what is asked meanwhile has the same error.

    What ends first counts first, in whichever thread: what is tried again ends after what was answered at once.
    """

    many = 5

    def __init__(self) -> None:
        self._lock, self._unanswered = threading.Lock(), 0
        self._silence, self._silent_until = OSError(), 0.0

    @property
    def is_away(self) -> bool:
        """Whether so many had no answer since the last one that had."""
        return self._unanswered >= self.many

    def __call__(self, work: Callable[[], T]) -> T:
        """Return `work()`."""
        answered, began = True, time.monotonic()
        if self.is_away and began < self._silent_until:
            raise OSError(self._silence.errno, self._silence.strerror)
        try:
            return with_retries(work, waits_seconds=() if self.is_away else None, most_seconds=LONG_SECONDS)
        except OSError as error:
            answered = not is_transient(error)
            if not answered and (took := time.monotonic() - began) > LONG_SECONDS / 2:
                self._silence, self._silent_until = error, time.monotonic() + took
            raise
        finally:
            self.count(answered=answered)

    def count(self, *, answered: bool) -> None:
        """Count one more question."""
        with self._lock:
            self._unanswered = 0 if answered else self._unanswered + 1
