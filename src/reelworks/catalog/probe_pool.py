"""Apply a function to many files in threads or in processes, in order, and outlive a crash.

Decoders run foreign code on foreign data. In threads, a crash ends everything; in processes, the
files that were in flight are tried again one at a time, and only the culprit is lost. Processes are
spawned, never forked: a forked child inherits locks that threads of its parent held.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from reelworks.core.worker_process import serve, submit

T = TypeVar("T")
R = TypeVar("R")

_CHUNKS_PER_WORKER = 4  # in flight; bounds what a crash makes suspect and what waits in memory


def map_ordered(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    processes: bool,
    crashed: Callable[[T], R],
    chunk_size: int = 8,
) -> Iterator[R]:
    """Yield `function(item)` for each item, in the items' order.

    Args:
        function: With `processes`, it and its values must pickle. What it raises is raised here.
        items: Taken as they are needed, so they may come from a generator.
        workers: Threads or processes.
        processes: Spawn processes rather than start threads.
        crashed: The result for an item whose process died.
        chunk_size: Items handed over at once.
    """
    source = iter(items)
    chunks = iter(lambda: list(islice(source, chunk_size)), [])
    while True:
        suspects = yield from _until_crash(function, chunks, workers, processes)
        if not suspects:
            return
        yield from _one_at_a_time(function, suspects, crashed)


def _until_crash(
    function: Callable[[T], R], chunks: Iterator[list[T]], workers: int, processes: bool
) -> Generator[R, None, list[T]]:
    """Yield results until the chunks or a process end; return the items whose results are still due."""
    waiting: deque[tuple[list[T], Future[list[R]]]] = deque()
    pool = _pool(workers, processes)
    try:
        while True:
            for chunk in islice(chunks, workers * _CHUNKS_PER_WORKER - len(waiting)):
                waiting.append((chunk, _submit(pool, function, chunk)))
            if not waiting:
                return []
            try:
                results = waiting[0][1].result()
            except BrokenExecutor:
                return [item for chunk, _ in waiting for item in chunk]
            waiting.popleft()
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)


def _one_at_a_time(function: Callable[[T], R], items: Sequence[T], crashed: Callable[[T], R]) -> Iterator[R]:
    remaining = deque(items)
    while remaining:
        with _pool(1, processes=True) as pool:
            while remaining:
                item = remaining.popleft()
                try:
                    yield submit(pool, function, item).result()
                except BrokenExecutor:
                    yield crashed(item)
                    break  # a broken pool takes no more work: start another


def _pool(workers: int, processes: bool) -> Executor:
    if processes:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(workers, mp_context=context, initializer=serve)
    return ThreadPoolExecutor(workers, thread_name_prefix="scan")


def _submit(pool: Executor, function: Callable[[T], R], chunk: list[T]) -> Future[list[R]]:
    try:
        return submit(pool, _each, function, chunk)
    except BrokenExecutor as error:  # so that the chunk waits in its place with the other suspects
        failed: Future[list[R]] = Future()
        failed.set_exception(error)
        return failed


def _each(function: Callable[[T], R], chunk: list[T]) -> list[R]:
    return [function(item) for item in chunk]
