"""Retries of work on network storage, whose errors are often transient."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401, so that its threads are joined after `AT_EXIT` is set
import errno
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import TypeVar

from reelworks.core.log import logger

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
# A question waits for a storage that limits the rate of requests, from its refusal on, for less time than decoders have; one of
# a scan for longer.
_BUSY_SECONDS = ContextVar("_BUSY_SECONDS", default=60.0)
BUSY_SECONDS_OF_SCANS = 600.0
_UNTOLD_SECONDS = (1.0, 30.0)  # least and most of a pause, where the storage does not say how long it wants
_SAID_EACH_SECONDS, _LOOK_SECONDS = 10.0, 0.2
AT_EXIT = threading.Event()  # of the program, whose threads then wait no longer
# What is registered last is called first.
threading._register_atexit(AT_EXIT.set)  # type: ignore[attr-defined]


class BusyError(OSError):
    """A storage limits the rate of requests.

    Attributes:
        seconds: Time after which it may be asked again; None if it does not say.
    """

    seconds: float | None = None


def asked_seconds(headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which a server wants to be asked again; None if it says nothing that is understood.

    Retry-After tells them as such, or by a date of the server's clock; `headers` have names in lower case.
    """
    told = headers.get("retry-after", "")
    with suppress(ValueError):
        return seconds if 0 <= (seconds := float(told)) < math.inf else None
    until, now = _seconds_of(told), _seconds_of(headers.get("date", ""))
    return None if until is None else until - (time.time() if now is None else now)


def _seconds_of(date: str) -> float | None:
    with suppress(ValueError, OverflowError):
        return parsedate_to_datetime(date).timestamp()
    return None


def is_transient(error: BaseException) -> bool:
    """Whether an error comes from the storage and may vanish on a retry at once, rather than from the file itself."""
    return isinstance(error, OSError) and error.errno in _TRANSIENT and not isinstance(error, BusyError)


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


class Pace:
    """Asks a storage that limits the rate of requests no sooner than it says, and then fewer questions at once.

    How many is found as TCP finds the rate of a network: a refusal halves it, and each answer adds a part of one.
    """

    def __init__(self, storage: str) -> None:
        self._storage, self._turn = storage, threading.Condition()
        self._asking, self._most = 0, math.inf
        self._since = math.inf  # when it refused first after its last answer
        self._until, self._said, self._why = 0.0, -math.inf, ""

    def __call__(self, work: Callable[[], T]) -> T:
        """Return `work()`, asked again after a `BusyError`.

        Raises:
            BusyError: The storage wants more time than a question waits.
        """
        patience, give_up = _BUSY_SECONDS.get(), math.inf
        while True:
            with self._turn:
                while (pause := self._until - time.monotonic()) > 0 or self._asking >= self._most:
                    if pause > patience or self._until > give_up or AT_EXIT.is_set():
                        raise BusyError(errno.EBUSY, f"{self._why}; it may be asked again in {pause:.0f} s")
                    self._turn.wait(_LOOK_SECONDS if pause <= 0 else min(pause, _LOOK_SECONDS))
                self._asking += 1
            busy = None
            try:
                return work()
            except BusyError as error:
                busy, give_up = error, min(give_up, min(self._since, time.monotonic()) + patience)
            finally:
                with self._turn:
                    self._count(busy)
                    self._turn.notify_all()

    def _count(self, busy: BusyError | None) -> None:
        now, self._asking = time.monotonic(), self._asking - 1
        if busy is None:
            self._since, self._most = math.inf, self._most + 1 / self._most
            return
        self._since, self._why = min(self._since, now), str(busy.strerror)
        if now >= self._until:  # otherwise it was asked before the refusal that was counted
            self._most = max(min(self._most, self._asking + 1) // 2, 1)
        seconds, (least, most) = busy.seconds or 0.0, _UNTOLD_SECONDS
        if seconds <= 0:  # then as long again as it has refused so far
            seconds = min(max(now - self._since, least), most)
        self._until = max(self._until, now + seconds)
        if now - self._said > _SAID_EACH_SECONDS:
            self._said = now
            logger.info("%s: %s; it may be asked again in %.0f s", self._storage, self._why, seconds)


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
        patience = _BUSY_SECONDS.set(0.0 if self.is_away else BUSY_SECONDS_OF_SCANS)
        try:
            return with_retries(work, waits_seconds=() if self.is_away else None, most_seconds=LONG_SECONDS)
        except OSError as error:
            answered = not (is_transient(error) or isinstance(error, BusyError))
            if is_transient(error) and (took := time.monotonic() - began) > LONG_SECONDS / 2:
                self._silence, self._silent_until = error, time.monotonic() + took
            raise
        finally:
            _BUSY_SECONDS.reset(patience)
            self.count(answered=answered)

    def count(self, *, answered: bool) -> None:
        """Count one more question."""
        with self._lock:
            self._unanswered = 0 if answered else self._unanswered + 1
