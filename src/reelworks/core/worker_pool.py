"""Pool of spawned processes that run calls for threads of this one, so that a crash or hang stays isolated.

A process may run several calls at once, each in a thread and with a pipe of its own. A process that dies in the middle of
a result, or is killed because a call hangs, therefore fails only its own calls, and these are known. Arrays are sent without
an intermediate copy, or written to shared memory.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from reelworks.core import shared_array, system
from reelworks.core.errors import UserError
from reelworks.core.shared_array import Slot

_CHECK_EVERY_SECONDS = 1.0
# A process may be killed from outside while it starts, which no call is to blame for.
_STARTS = 5
_MOST_AT_ONCE = 1 << 24  # bytes; pipes of Windows take no more than a part of its memory
_EXIT_SECONDS = 5.0  # after a process has closed its pipes
_PATIENCE_SECONDS = 5.0  # with threads, once no more calls are taken


def end_with_parent() -> None:
    """Start a thread that ends this process soon after its parent, even if that was killed."""
    parent = os.getppid()

    def watch() -> None:
        while system.is_parent(parent):
            time.sleep(_CHECK_EVERY_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


T = TypeVar("T")
R = TypeVar("R")


class WorkerDied(Exception):  # noqa: N818
    """A worker process ended during a call."""


class WorkerStopped(WorkerDied):
    """A worker process was killed because of another call, which hung; this one is not to blame."""


class WorkerHung(Exception):  # noqa: N818
    """A call took too long, and its worker process was killed."""


class WorkerPool:
    """Pool of worker processes, which are started on demand and reused.

    Each thread that calls has a thread of a process for the time of its call, so the pool grows to the largest number of
    concurrent calls. Processes are spawned, never forked: a forked child inherits locks that threads of its parent
    held. A process that was forked from this one cannot use the pool, and leaves its processes alone.

    Args:
        threads: Calls that a process runs at once.
        setting: Key whose value 0 makes the calls in threads of this process, for errors; None if nothing does.

    Raises:
        UserError: This process can start none.
    """

    def __init__(self, threads: int = 1, *, setting: str | None = None) -> None:
        self.threads, self._setting = threads, setting
        self._or_none = "" if setting is None else f"; or set {setting.rpartition('.')[2]} = 0"
        self._require_startable()
        self._pid = os.getpid()
        self._idle: list[_Channel] = []
        self._busy: set[_Channel] = set()
        self._changed = threading.Condition()
        self._closed = False
        # Runs before multiprocessing's own exit handler, which waits for all processes.
        atexit.register(self.close)

    def call(
        self,
        function: Callable[[T], R],
        value: T,
        timeout_seconds: float | None = None,
        *,
        into: Slot | None = None,
        alone: bool = False,
    ) -> R:
        """Return `function(value)`, computed in a worker process; its exceptions are raised in the calling thread.

        All three must be picklable. After `timeout_seconds`, not counting its start, the process is killed.

        Args:
            into: Memory where the arrays of the result are to lie, if they fit.
            alone: Whether to use a fresh process that runs no other call, so that its death has one cause.

        Raises:
            WorkerDied: The process ended during the call, or the pool is closed.
            WorkerStopped: The process was killed because of another of its calls.
            WorkerHung: The call took longer than `timeout_seconds`.
            UserError: Processes cannot load what they are sent, as a function of a notebook, or fail as they start, as below a
                script without `if __name__ == "__main__":`.
        """
        channel = self._take(alone)
        usable = False
        try:
            result = channel.call(function, value, timeout_seconds, into)
            usable = True
        finally:
            self._give_back(channel, usable and not alone)
        if isinstance(result, _Raised):
            if result.is_unread:
                raise UserError(
                    f"a worker process cannot load what it is to run: {result.error}",
                    code="worker-cannot-load",
                    field=self._setting,
                    remedy="define each function and class that you pass in a module that can be imported, not in a notebook or "
                    f"an interactive session{self._or_none}",
                ) from result.error
            raise result.error
        return result

    def close(self, patience_seconds: float = 5.0) -> None:
        """End all processes; those still busy after `patience_seconds` are killed, and their calls fail.

        If it is interrupted, it can be called again.
        """
        if os.getpid() != self._pid:
            return  # they belong to the process that this one was forked from
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._busy, patience_seconds)
            for channel in self._busy:
                channel.process.kill()
            idle = {channel.process for channel in self._idle}
        deadline = time.monotonic() + patience_seconds
        for channel in self._idle:
            channel.connection.close()
        for process in idle:
            process.join(max(deadline - time.monotonic(), 0))
            process.end()
        self._idle.clear()
        atexit.unregister(self.close)

    def _require_startable(self) -> None:
        """Refuse a process from which none can be spawned, before it tries and fails."""
        script = spawn.get_preparation_data("worker").get("init_main_from_path")
        if multiprocessing.current_process().daemon:
            problem, remedy = "this is a daemonic process, which may start none", "start it with daemon=False"
        elif script is not None and not Path(script).exists():
            problem = f"each worker process imports your script, and {script} is no file"
            remedy = "save your script as a file"
        else:
            return
        raise UserError(problem, code="workers-impossible", field=self._setting, remedy=remedy + self._or_none)

    def _take(self, alone: bool) -> _Channel:
        for _ in range(_STARTS):
            with self._changed:
                if self._closed:
                    raise WorkerDied("the pool is closed")
                if alone or not self._idle:
                    channel, *others = _Process(1 if alone else self.threads).channels
                    self._idle += others
                else:
                    channel = self._idle.pop()
                self._busy.add(channel)
            begun = False
            try:
                begun = channel.await_start()
            finally:
                if not begun:
                    channel.process.join(_EXIT_SECONDS)
                    self._give_back(channel, usable=False)
            if begun:
                return channel
            if channel.process.has_failed:
                raise UserError(
                    "a worker process failed as it started; its own error stands above",
                    code="worker-failed",
                    field=self._setting,
                    remedy='put what your script does below `if __name__ == "__main__":`, since each worker process imports '
                    f"the script{self._or_none}",
                )
        raise WorkerDied(f"{_STARTS} processes ended as they started")

    def _give_back(self, channel: _Channel, usable: bool) -> None:
        process = channel.process
        with self._changed:
            usable = usable and not process.is_ended
            if usable:
                self._idle.append(channel)
            else:
                process.is_ended = True
                self._idle = [other for other in self._idle if other.process is not process]
        if not usable:
            process.end()
            channel.connection.close()
        with self._changed:
            self._busy.discard(channel)
            self._changed.notify_all()


@dataclass(frozen=True)
class _Raised:
    error: Exception
    is_unread: bool = False  # by what unpickles the call, which was not made


class _Process:
    """A worker process, with a channel to each of its threads."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(threads)]
        self._process = context.Process(target=_serve, args=([theirs for _, theirs in pipes],), daemon=True)
        self._process.start()
        self.sentinel = self._process.sentinel  # what `multiprocessing.connection.wait` takes to wait for its end
        self._lock = threading.Lock()  # a process can be waited for by one thread at a time
        self.is_ended = False  # or about to be
        self.has_hung = False
        self.channels = [_Channel(self, ours) for ours, _ in pipes]
        for _, theirs in pipes:
            theirs.close()

    @property
    def has_failed(self) -> bool:
        """Whether it ended by an error, and not by a signal or as it should."""
        code = self._process.exitcode or 0
        return code > 0 and system.what_ended(code) is None

    def kill(self) -> None:
        self._process.kill()

    def join(self, timeout_seconds: float | None = None) -> None:
        with self._lock:
            self._process.join(timeout_seconds)

    def end(self) -> None:
        self.kill()
        self.join()


class _Channel:
    """A pipe to one thread of a worker process."""

    def __init__(self, process: _Process, connection: Connection) -> None:
        self.process, self.connection = process, connection
        self._has_started = False

    def await_start(self) -> bool:
        """Wait until the worker's thread has started; return False if its process ended before."""
        with suppress(EOFError, ConnectionError):
            if not self._has_started:
                # On Windows, a pipe stays open whose process ends before it has taken it.
                wait_for_any([self.connection, self.process.sentinel])
                if not self.connection.poll():
                    return False
                self.connection.recv()
            self._has_started = True
        return self._has_started

    def call(
        self, function: Callable[[T], R], value: T, timeout_seconds: float | None, into: Slot | None
    ) -> R | _Raised:
        try:
            file = None if into is None else into.memory.file
            place = None if into is None or file is None else (into.offset, into.array.nbytes)
            self.connection.send((pickle.dumps((function, value)), place))
            if file is not None:
                with socket.socket(fileno=os.dup(self.connection.fileno())) as pipe:
                    socket.send_fds(pipe, [b"\0"], [file])
            self.connection.recv()  # the worker's message that the call has begun
            if not self.connection.poll(timeout_seconds):
                self.process.has_hung = True
                raise WorkerHung(f"a call took more than {timeout_seconds:g} s")
            result: R | _Raised = _receive(self.connection, into)
            return result
        except (EOFError, OSError) as error:
            if self.process.has_hung:
                raise WorkerStopped("a process was killed because of another call") from error
            raise WorkerDied("a process ended during its call") from error


_Call = tuple[Future[Any], Callable[[Any], Any], Any]  # where its result goes, the function and its argument


class ThreadCalls:
    """Makes calls in threads, one call in each at a time, with the interface of `WorkerPool`.

    It is safe to use from several threads. Calls begin at once, where a process first imports for a second or two. A thread
    cannot be ended: one that hangs is left behind, and goes on until the program ends, which it does not prevent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = set[Future[Any]]()
        self._idle: list[SimpleQueue[_Call | None]] = []  # of threads that wait for a call
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
            queue = self._idle.pop() if self._idle else None

        if queue is None:
            queue = SimpleQueue()
            threading.Thread(target=_make_calls, args=(queue,), daemon=True).start()
        queue.put((future, function, value))
        try:
            if not wait([future], timeout_seconds).done:
                raise WorkerHung(f"a call took more than {timeout_seconds:g} s")
            return future.result()
        finally:
            with self._lock:
                self._running.discard(future)
                if future.done() and not self._is_closed:
                    self._idle.append(queue)
                else:
                    queue.put(None)
            del future  # its exception holds this frame

    def close(self) -> None:
        """Wait a little for the calls that are running; those that go on longer fail."""
        with self._lock:
            self._is_closed = True
            running = list(self._running)
        for future in wait(running, _PATIENCE_SECONDS).not_done:
            with suppress(InvalidStateError):
                future.set_exception(WorkerDied("the calls are closed"))

    def __del__(self) -> None:
        for queue in self._idle:
            queue.put(None)


def _make_calls(queue: SimpleQueue[_Call | None]) -> None:
    while (call := queue.get()) is not None:
        future, function, value = call
        with suppress(InvalidStateError):  # closed before
            try:
                future.set_result(function(value))
            except BaseException as error:
                future.set_exception(error)
        del call, future, function, value  # until the next call comes


def _serve(connections: list[Connection]) -> None:
    # Ctrl-C and a scheduler's signals reach every process of a job, but only the parent handles them.
    system.handle_stops(signal.SIG_IGN)
    end_with_parent()
    for connection in connections[1:]:
        threading.Thread(target=_serve_calls, args=(connection,)).start()
    _serve_calls(connections[0])


def _serve_calls(connection: Connection) -> None:
    # However it ends, its pipe is closed: the other threads keep the process alive, and nobody may wait for this one.
    with connection, suppress(EOFError, ConnectionError):
        connection.send(None)
        while True:
            data, place = connection.recv()
            file = None if place is None else _receive_file(connection)
            try:
                call = _result(pickle.loads, data)
                connection.send(None)
                result = _Raised(call.error, is_unread=True) if isinstance(call, _Raised) else _result(*call)
                _send(connection, result, file, place)
            finally:
                if file is not None:
                    os.close(file)


def _result(function: Callable[[T], R], value: T) -> R | _Raised:
    try:
        return function(value)
    except Exception as error:
        error.add_note(f"In a worker process:\n{traceback.format_exc()}")
        return _Raised(error)


def _receive_file(connection: Connection) -> int:
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        _, files, _, _ = socket.recv_fds(pipe, 1, 1)
    if not files:
        raise EOFError
    return files[0]


def _send(connection: Connection, message: object, file: int | None, place: tuple[int, int] | None) -> None:
    """Send an object: its pickle and the sizes of its arrays; the arrays go to shared memory or follow, without a copy."""
    arrays: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(message, protocol=5, buffer_callback=arrays.append)
    except Exception as error:  # anything may be raised by what is pickled
        error.add_note(f"In a worker process, which sends {message!r:.500}")
        arrays.clear()
        data = pickle.dumps(_Raised(error), protocol=5)
    raw = [array.raw() for array in arrays]
    sizes = [view.nbytes for view in raw]
    if file is not None and place is not None and sum(sizes) <= place[1]:
        shared_array.write(file, place[0], raw)
        raw = []
    connection.send((data, sizes, not raw))
    for view in raw:
        for start in range(0, view.nbytes, _MOST_AT_ONCE):
            connection.send_bytes(view[start : start + _MOST_AT_ONCE])


def _receive(connection: Connection, into: Slot | None) -> Any:
    data, sizes, is_shared = connection.recv()
    if into is not None and sum(sizes) <= into.array.nbytes:
        memory, ends = into.array.data.cast("B"), itertools.accumulate(sizes)
        arrays = [memory[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    else:
        arrays = [memoryview(bytearray(size)) for size in sizes]
    for view in [] if is_shared else arrays:
        for start in range(0, view.nbytes, _MOST_AT_ONCE):
            connection.recv_bytes_into(view[start : start + _MOST_AT_ONCE])
    return pickle.loads(data, buffers=arrays)
