"""Apply a function to many files in threads or processes, here or on a cluster, in order, and survive crashes and hangs.

Decoders are native code, which a damaged file can crash, or from which it never returns. The files of a chunk that took too
long, or whose process died, are tried again one at a time, and only the file at fault is lost. In threads, a crash ends the
program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import islice
from typing import TypeVar

from reelworks.core import units
from reelworks.core.executors import CallPool
from reelworks.core.log import logger
from reelworks.core.worker_pool import ThreadCalls, WorkerDied, WorkerHung

T = TypeVar("T")
R = TypeVar("R")

CRASHED = "the decoder crashed on it"
_TOLD_SECONDS = 30.0
_CHUNKS_PER_WORKER = 4  # chunks in flight; bounds the results waiting in memory


def map_ordered(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    processes: CallPool | None,
    failed: Callable[[T, str], R],
    most_seconds: Callable[[Sequence[T]], float],
    name: Callable[[T], object] = str,
    chunk_size: int = 8,
) -> Iterator[R]:
    """Yield `function(item)` for each item, in the items' order; they are consumed lazily.

    Args:
        function: With `processes`, it, its argument and its result must pickle. Its exceptions are raised here.
        workers: Number of calls at once.
        processes: Pool to use instead of threads of this process; it is closed at the end.
        failed: Returns the result for an item whose call took too long, or whose process died, given the reason.
        most_seconds: Returns how long a call with these items may take.
        name: Returns what an item is called while it is waited for.
        chunk_size: Number of items sent to a worker at once.
    """
    calls = ThreadCalls() if processes is None else processes

    def of_chunk(chunk: list[T]) -> list[R]:
        try:
            return calls.call(partial(_each, function), chunk, most_seconds(chunk))
        except (WorkerDied, WorkerHung):
            return [alone(item, most_seconds([item])) for item in chunk]

    def alone(item: T, seconds: float) -> R:
        try:
            return calls.call(function, item, seconds)
        except WorkerDied:
            return failed(item, CRASHED)
        except WorkerHung:
            return failed(item, f"it took more than {units.number(seconds)} s and was stopped")

    source = iter(items)
    chunks = iter(lambda: list(islice(source, chunk_size)), [])
    waiting: deque[tuple[Future[list[R]], list[T]]] = deque()
    threads = ThreadPoolExecutor(workers, thread_name_prefix="scan")
    try:
        while True:
            for chunk in islice(chunks, workers * _CHUNKS_PER_WORKER - len(waiting)):
                waiting.append((threads.submit(of_chunk, chunk), chunk))
            if not waiting:
                return
            first, chunk = waiting.popleft()
            while not wait([first], _TOLD_SECONDS).done:
                others = ", or for what is after it" if len(chunk) > 1 else ""
                logger.info(f"still waiting after {_TOLD_SECONDS:g} s for {name(chunk[0])} to be read{others}")
            yield from first.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        calls.close()
        threads.shutdown()


def _each(function: Callable[[T], R], chunk: list[T]) -> list[R]:
    return [function(item) for item in chunk]
