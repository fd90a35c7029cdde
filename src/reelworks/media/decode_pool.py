"""Decode clips in worker processes that report the clip they work on, so that a hung one is killed; or in threads.

A pool of processes cannot say which of them hangs. Here a worker writes its clip's number to shared memory
before it reads and 0 afterwards, so that whoever waits can kill the one that takes too long, and name the
clip.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import time
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from reelworks.core import worker_process
from reelworks.media.decode import Frames, MediaError, Request, load

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Failure:
    """Why a clip gave no frames."""

    reason: str


class _Place(ctypes.Structure):
    """Progress of a worker: a clip's number, 0 for none, and since when by the machine's steady clock."""

    _fields_ = (("pid", ctypes.c_int64), ("number", ctypes.c_int64), ("since_ns", ctypes.c_int64))


class DecodeProcesses:
    """Workers that live and die together: where a process is lost, all that was queued is.

    Args:
        num_workers: Spawned processes; 0 makes two threads of this process, which cannot be killed.

    Attributes:
        hung: Numbers of the clips whose workers were killed over them.
    """

    def __init__(self, num_workers: int) -> None:
        self.hung: set[int] = set()
        self._places: Any = ()
        self._processes: Mapping[int, BaseProcess] = {}
        self._executor: Executor
        if num_workers == 0:
            self._executor = ThreadPoolExecutor(2, thread_name_prefix="decode")
            return
        # Never forked: a child that inherits the trainer's threads and locks may hang at once.
        context = multiprocessing.get_context("spawn")
        self._places = context.RawArray(_Place, num_workers)
        taken = context.Value("i", 0)
        executor = ProcessPoolExecutor(
            num_workers, mp_context=context, initializer=_serve, initargs=(self._places, taken)
        )
        # Pools do not show their processes in public, and offer no way to end one that does not answer.
        self._executor, self._processes = executor, executor._processes

    def submit(self, number: int, request: Request) -> Future[Frames | Failure]:
        """Queue a clip under a number of its own, from 1.

        Raises:
            BrokenProcessPool: A process was lost, and the crew with it.
        """
        return worker_process.submit(self._executor, _read, number, request)

    def end_hung(self, timeout_seconds: float) -> None:
        """Kill the processes that have been at one clip for longer; the crew is lost with them."""
        now = time.monotonic_ns()
        for place in self._places:
            # In this order: beside an old number may stand its successor's time, which is young.
            number, since_ns = place.number, place.since_ns
            if number and number not in self.hung and now - since_ns > timeout_seconds * 1e9:
                self.hung.add(number)
                self._processes[place.pid].kill()

    def abandon(self) -> None:
        """Kill what is left of a lost crew: its processes would wait for work, or hang, for ever."""
        for process in list(self._processes.values()):
            process.kill()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Stop the workers; what is queued is dropped, and a process that hangs in a decoder is killed."""
        processes = list(self._processes.values())
        self._executor.shutdown(wait=not processes, cancel_futures=True)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0))
            if process.is_alive():
                process.kill()
                process.join()


_place = _Place()  # a worker process has its own in shared memory; of threads nobody asks


def _serve(places: Any, taken: Any) -> None:
    """Make this process a worker, at the next free place."""
    global _place
    worker_process.serve()
    with taken.get_lock():
        _place = places[taken.value]
        taken.value += 1
    _place.pid = os.getpid()


def _read(number: int, request: Request) -> Frames | Failure:
    """Decode one clip; every failure of the file is a value, so that it never stops a worker."""
    _place.since_ns = time.monotonic_ns()
    _place.number = number
    try:
        return load(request)
    except MediaError as error:
        return Failure(str(error))
    finally:
        _place.number = 0


# A clip may lose its worker to another clip that crashed it; only one that does so again is to blame.
_ATTEMPTS = 3
_LOOK_EVERY_SECONDS = 1.0


@dataclass(eq=False)
class Job:
    """One clip on its way through the pool.

    Attributes:
        number: The clip's in its pool, from 1.
        request: What to read.
        crew: The workers that it is queued for.
        future: Its result.
    """

    number: int
    request: Request
    crew: DecodeProcesses
    future: Future[Frames | Failure]


class DecodePool:
    """Decodes clips in the background.

    Args:
        num_workers: Spawned processes; 0 uses two threads of this process.
        timeout_seconds: A process that is at one clip for longer is killed, and the clip is a failure. A
            thread cannot be killed: with 0 workers, a decoder that hangs is waited for.
    """

    def __init__(self, num_workers: int, timeout_seconds: float) -> None:
        self.num_workers, self.timeout_seconds = num_workers, timeout_seconds
        self._numbers = itertools.count(1)
        self._crew = DecodeProcesses(num_workers)

    def submit(self, request: Request) -> Job:
        """Queue a clip."""
        number = next(self._numbers)
        return Job(number, request, *self._queue(number, request))

    def _queue(self, number: int, request: Request) -> tuple[DecodeProcesses, Future[Frames | Failure]]:
        try:
            return self._crew, self._crew.submit(number, request)
        except BrokenProcessPool:
            self._crew.abandon()
            self._crew = DecodeProcesses(self.num_workers)
            return self._crew, self._crew.submit(number, request)

    def result(self, job: Job) -> Frames | Failure:
        """Wait for a clip; one that hangs, or whose workers die again and again, is a failure as any other."""
        attempts_left = _ATTEMPTS
        while True:
            try:
                return self._wait(job)
            except BrokenProcessPool:
                if job.number in job.crew.hung:
                    return Failure(f"decoding took more than {self.timeout_seconds:g} s and was ended")
                attempts_left -= not job.crew.hung  # for the others, that was no crash
            if not attempts_left:
                return Failure("the decoder crashed on it")
            job.crew, job.future = self._queue(job.number, job.request)

    def _wait(self, job: Job) -> Frames | Failure:
        """Wait for a clip, with an eye on all that are being read.

        Raises:
            BrokenProcessPool: Its worker, or another of the crew, was lost.
        """
        while not job.future.done():
            self._crew.end_hung(self.timeout_seconds)
            wait([job.future], timeout=_LOOK_EVERY_SECONDS)
        return job.future.result()

    def close(self) -> None:
        """Stop the workers; what is queued is dropped, and a process that hangs in a decoder is killed."""
        self._crew.close()
