"""Apply a function to many files in threads or processes, in order, and survive crashes of processes.

Decoders are native code, which a damaged file can crash. In threads, a crash ends the program; in processes, the
files of the chunk are tried again one at a time, and only the file at fault is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TypeVar

from reelworks.core.worker_pool import WorkerDied, WorkerPool

T = TypeVar("T")
R = TypeVar("R")

_CHUNKS_PER_WORKER = 4  # chunks in flight; bounds the results waiting in memory


def map_ordered(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    processes: bool,
    crashed: Callable[[T], R],
    chunk_size: int = 8,
) -> Iterator[R]:
    """Yield `function(item)` for each item, in the items' order; they are consumed lazily.

    Args:
        function: With `processes`, it, its argument and its result must pickle. Its exceptions are raised here.
        processes: Whether to use spawned processes instead of threads.
        crashed: Returns the result for an item whose process died.
        chunk_size: Number of items sent to a worker at once.
    """

    def alone(item: T) -> R:
        try:
            return pool.call(function, item)
        except WorkerDied:
            return crashed(item)

    def in_process(chunk: list[T]) -> list[R]:
        try:
            return pool.call(partial(_each, function), chunk)
        except WorkerDied:
            return [alone(item) for item in chunk]

    source = iter(items)
    chunks = iter(lambda: list(islice(source, chunk_size)), [])
    waiting: deque[Future[list[R]]] = deque()
    threads = ThreadPoolExecutor(workers, thread_name_prefix="scan")
    pool = WorkerPool()
    apply = in_process if processes else partial(_each, function)
    try:
        while True:
            for chunk in islice(chunks, workers * _CHUNKS_PER_WORKER - len(waiting)):
                waiting.append(threads.submit(apply, chunk))
            if not waiting:
                return
            yield from waiting.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        pool.close()
        threads.shutdown()


def _each(function: Callable[[T], R], chunk: list[T]) -> list[R]:
    return [function(item) for item in chunk]
