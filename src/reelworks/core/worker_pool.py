"""Pool of spawned processes that run calls for threads of this one, so that a crash or hang stays isolated.

Each process has its own pipe. A process that dies in the middle of a result, or is killed because it hangs,
therefore fails only its own call, and that call is known. Arrays are sent without an intermediate copy.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

_CHECK_EVERY_SECONDS = 1.0


def end_with_parent() -> None:
    """Start a thread that ends this process soon after its parent, even if that was killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_CHECK_EVERY_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


T = TypeVar("T")
R = TypeVar("R")


class WorkerDied(Exception):  # noqa: N818
    """A worker process ended during a call."""


class WorkerHung(Exception):  # noqa: N818
    """A call took too long, and its worker process was killed."""


class WorkerPool:
    """Pool of worker processes, which are started on demand and reused.

    Each thread that calls has a process for the time of its call, so the pool grows to the largest number of
    concurrent calls. Processes are spawned, never forked: a forked child inherits locks that threads of its parent
    held.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._changed = threading.Condition()
        self._closed = False
        # Runs before multiprocessing's own exit handler, which waits for all processes.
        atexit.register(self.close)

    def call(self, function: Callable[[T], R], value: T, timeout_seconds: float | None = None) -> R:
        """Return `function(value)`, computed in a worker process; its exceptions are raised in the calling thread.

        All three must be picklable. After `timeout_seconds`, not counting its start, the process is killed.

        Raises:
            WorkerDied: The process ended during the call, or the pool is closed.
            WorkerHung: The call took longer than `timeout_seconds`.
        """
        worker = self._take()
        usable = False
        try:
            result = worker.call(function, value, timeout_seconds)
            usable = True
        finally:
            self._give_back(worker, usable)
        if isinstance(result, _Raised):
            raise result.error
        return result

    def close(self, patience_seconds: float = 5.0) -> None:
        """End all processes; those still busy after `patience_seconds` are killed, and their calls fail.

        If it is interrupted, it can be called again.
        """
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._busy, patience_seconds)
            for worker in self._busy:
                worker.process.kill()
        for worker in self._idle:
            worker.connection.close()
        deadline = time.monotonic() + patience_seconds
        for worker in self._idle:
            worker.process.join(max(deadline - time.monotonic(), 0))
            worker.end()
        self._idle.clear()
        atexit.unregister(self.close)

    def _take(self) -> _Worker:
        with self._changed:
            if self._closed:
                raise WorkerDied("the pool is closed")
            worker = self._idle.pop() if self._idle else _Worker()
            self._busy.add(worker)
            return worker

    def _give_back(self, worker: _Worker, usable: bool) -> None:
        with self._changed:
            usable = usable and not self._closed
            if usable:
                self._idle.append(worker)
        if not usable:
            worker.end()
        with self._changed:
            self._busy.discard(worker)
            self._changed.notify_all()


@dataclass(frozen=True)
class _Raised:
    error: Exception


class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, function: Callable[[T], R], value: T, timeout_seconds: float | None) -> R | _Raised:
        try:
            self.connection.send((function, value))
            self.connection.recv()  # the worker's message that the call has begun
            if not self.connection.poll(timeout_seconds):
                raise WorkerHung(f"a call took more than {timeout_seconds:g} s")
            result: R | _Raised = _receive(self.connection)
            return result
        except (EOFError, ConnectionError) as error:
            raise WorkerDied("a process ended during its call") from error

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection) -> None:
    # Ctrl-C and a scheduler's signals reach every process of a job, but only the parent handles them.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    with suppress(EOFError, ConnectionError):
        while True:
            function, value = connection.recv()
            connection.send(None)
            _send(connection, _result(function, value))


def _result(function: Callable[[T], R], value: T) -> R | _Raised:
    try:
        return function(value)
    except Exception as error:
        error.add_note(f"In a worker process:\n{traceback.format_exc()}")
        return _Raised(error)


def _send(connection: Connection, message: object) -> None:
    """Send an object: its pickle and the sizes of its arrays, then the arrays themselves without a copy."""
    arrays: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, protocol=5, buffer_callback=arrays.append)
    raw = [array.raw() for array in arrays]
    connection.send((data, [view.nbytes for view in raw]))
    for view in raw:
        while view.nbytes:
            view = view[os.write(connection.fileno(), view) :]


def _receive(connection: Connection) -> Any:
    data, sizes = connection.recv()
    arrays = [bytearray(size) for size in sizes]
    for array in arrays:
        view = memoryview(array)
        while view.nbytes:
            count = os.readv(connection.fileno(), [view])
            if count == 0:
                raise EOFError
            view = view[count:]
    return pickle.loads(data, buffers=arrays)
