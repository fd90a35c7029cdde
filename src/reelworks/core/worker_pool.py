"""Spawned processes that make calls for threads of this one, so that foreign code may crash or hang in them.

Each process has a pipe of its own, which nobody else writes to. One that dies in the middle of a result, or is
killed because it hangs, therefore costs its own call and no other, and whose call that was is known. Arrays cross
the pipe straight from memory to memory.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from reelworks.core import worker_process

T = TypeVar("T")
R = TypeVar("R")


class WorkerDied(Exception):  # noqa: N818
    """A process ended during its call."""


class WorkerHung(Exception):  # noqa: N818
    """A call took too long, and its process was killed."""


class WorkerPool:
    """Processes that are started as calls need them, and kept for later calls.

    As many calls are made at a time as there are threads that make them. Processes are spawned, never forked: a
    forked child inherits locks that threads of its parent held.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._changed = threading.Condition()
        self._closed = False
        # Before multiprocessing's own exit handler, which waits for all processes.
        atexit.register(self.close)

    def call(self, function: Callable[[T], R], value: T, timeout_seconds: float | None = None) -> R:
        """Return `function(value)` from a process; what it raises is raised here.

        Args:
            function: Pickles, as the value and the result do.
            value: Its argument.
            timeout_seconds: The process is killed where the call takes longer; starting it does not count.

        Raises:
            WorkerDied: The process ended meanwhile, or the pool is closed.
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
        """End all processes; those whose calls last longer than the patience are killed, and the calls fail.

        Where it is interrupted, it may be called again.
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
    """An error that a call raised instead of giving a result."""

    error: Exception


class _Worker:
    """A process and this side of its pipe."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, function: Callable[[T], R], value: T, timeout_seconds: float | None) -> R | _Raised:
        try:
            self.connection.send((function, value))
            self.connection.recv()  # that it has begun
            if not self.connection.poll(timeout_seconds):
                raise WorkerHung(f"a call took more than {timeout_seconds:g} s")
            result: R | _Raised = _receive(self.connection)
            return result
        except (EOFError, ConnectionError) as error:
            raise WorkerDied("a process ended during its call") from error

    def end(self) -> None:
        """Kill the process, if it has not ended."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection) -> None:
    """Make calls until the other side closes the pipe."""
    worker_process.serve()
    try:
        while True:
            function, value = connection.recv()
            connection.send(None)
            _send(connection, _result(function, value))
    except (EOFError, ConnectionError):
        return


def _result(function: Callable[[T], R], value: T) -> R | _Raised:
    try:
        return function(value)
    except Exception as error:
        error.add_note(f"In a worker process:\n{traceback.format_exc()}")
        return _Raised(error)


def _send(connection: Connection, message: object) -> None:
    """Send an object: its pickle and the sizes of its arrays, then the arrays, which are not copied first."""
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
