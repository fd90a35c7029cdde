"""Calls in threads of this process that are left behind if they take too long, with the interface of `WorkerPool`.

They begin at once, where a process first imports for a second or two. A thread cannot be ended: one that hangs goes on until
the program ends, which it does not prevent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any, TypeVar

from reelworks.core.worker_pool import WorkerDied, WorkerHung

T = TypeVar("T")
R = TypeVar("R")
_PATIENCE_SECONDS = 5.0


class ThreadCalls:
    """Makes each call in a thread of its own; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = set[Future[Any]]()
        self._is_closed = False

    def call(self, function: Callable[[T], R], value: T, timeout_seconds: float | None = None) -> R:
        """Return `function(value)`; its exceptions are raised here.

        Raises:
            WorkerHung: The call took longer than `timeout_seconds`.
            WorkerDied: It was closed before the call ended.
        """
        future: Future[R] = Future()
        with self._lock:
            if self._is_closed:
                raise WorkerDied("the calls are closed")
            self._running.add(future)
        threading.Thread(target=_run, args=(future, function, value), daemon=True).start()
        try:
            if not wait([future], timeout_seconds).done:
                raise WorkerHung(f"a call took more than {timeout_seconds:g} s")
            return future.result()
        finally:
            with self._lock:
                self._running.discard(future)

    def close(self) -> None:
        """Wait a little for the calls that are running; those that go on longer fail."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for future in wait(running, _PATIENCE_SECONDS).not_done:
            with suppress(InvalidStateError):
                future.set_exception(WorkerDied("the calls are closed"))


def _run(future: Future[R], function: Callable[[T], R], value: T) -> None:
    with suppress(InvalidStateError):  # closed before
        try:
            future.set_result(function(value))
        except BaseException as error:
            future.set_exception(error)
