"""Apply a function to many files in threads or processes, here or on a cluster, in order, and survive crashes of processes.

Decoders are native code, which a damaged file can crash. In threads, a crash ends the program; in processes, the
files of the chunk are tried again one at a time, and only the file at fault is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from reelworks.core.worker_pool import WorkerDied

T = TypeVar("T")
R = TypeVar("R")

_CHUNKS_PER_WORKER = 4  # chunks in flight; bounds the results waiting in memory


class Processes(Protocol):
    """A pool of processes; see `WorkerPool` and `RayPool`."""

    def call(self, function: Callable[[T], R], value: T, /) -> R:
        """Return `function(value)`; raises `WorkerDied` if the process ends during the call."""

    def close(self) -> None:
        """End the processes."""


def map_ordered(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    processes: Processes | None,
    crashed: Callable[[T], R],
    chunk_size: int = 8,
) -> Iterator[R]:
    """Yield `function(item)` for each item, in the items' order; they are consumed lazily.

    Args:
        function: With `processes`, it, its argument and its result must pickle. Its exceptions are raised here.
        workers: Number of threads, which apply the function or each make a call in `processes`.
        processes: Pool to use instead of this process; it is closed at the end.
        crashed: Returns the result for an item whose process died.
        chunk_size: Number of items sent to a worker at once.
    """
    source = iter(items)
    chunks = iter(lambda: list(islice(source, chunk_size)), [])
    waiting: deque[Future[list[R]]] = deque()
    threads = ThreadPoolExecutor(workers, thread_name_prefix="scan")
    apply = partial(_each, function) if processes is None else partial(_in_process, processes, function, crashed)
    try:
        while True:
            for chunk in islice(chunks, workers * _CHUNKS_PER_WORKER - len(waiting)):
                waiting.append(threads.submit(apply, chunk))
            if not waiting:
                return
            yield from waiting.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        if processes is not None:
            processes.close()
        threads.shutdown()


def _in_process(processes: Processes, function: Callable[[T], R], crashed: Callable[[T], R], chunk: list[T]) -> list[R]:
    try:
        return processes.call(partial(_each, function), chunk)
    except WorkerDied:
        return [_alone(processes, function, crashed, item) for item in chunk]


def _alone(processes: Processes, function: Callable[[T], R], crashed: Callable[[T], R], item: T) -> R:
    try:
        return processes.call(function, item)
    except WorkerDied:
        return crashed(item)


def _each(function: Callable[[T], R], chunk: list[T]) -> list[R]:
    return [function(item) for item in chunk]
