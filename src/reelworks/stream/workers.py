"""A pool that decodes clips: spawned processes, or threads where the trainer asks for none."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from reelworks.core import workers
from reelworks.media.load import Frames, MediaError, Request, load

# A clip may lose its worker to another clip that crashed it; only one that does so again is to blame.
_ATTEMPTS = 3
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Failure:
    """Why a clip gave no frames."""

    reason: str


def read(request: Request) -> Frames | Failure:
    """Decode one clip; every failure of the file is a value, so that it never stops a worker."""
    try:
        return load(request)
    except MediaError as error:
        return Failure(str(error))


@dataclass
class Job:
    """One clip on its way through the pool."""

    request: Request
    future: Future[Frames | Failure]


@dataclass
class DecodePool:
    """Decodes clips in the background.

    Args:
        num_workers: Spawned processes; 0 uses two threads of this process.
    """

    num_workers: int
    _executor: Executor = field(init=False)

    def __post_init__(self) -> None:
        self._executor = self._start()

    def _start(self) -> Executor:
        if self.num_workers == 0:
            return ThreadPoolExecutor(2, thread_name_prefix="decode")
        # Never forked: a child that inherits the trainer's threads and locks may hang at once.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.num_workers, mp_context=context, initializer=workers.serve)

    def submit(self, request: Request) -> Job:
        """Queue a clip."""
        return Job(request, self._submit(request))

    def _submit(self, request: Request) -> Future[Frames | Failure]:
        try:
            return self._executor.submit(read, request)
        except BrokenProcessPool:
            self._restart()
            return self._executor.submit(read, request)

    def result(self, job: Job) -> Frames | Failure:
        """Wait for a clip; one whose workers die again and again is a failure like any other."""
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                return job.future.result()
            except BrokenProcessPool:
                if attempts_left:
                    job.future = self._submit(job.request)
        return Failure("the decoder crashed on it")

    def _restart(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._start()

    def close(self) -> None:
        """Stop the workers; what is queued is dropped, and a worker that hangs in a decoder is killed."""
        # Pools do not show their processes in public, and offer no way to end one that does not answer.
        processes = list((getattr(self._executor, "_processes", None) or {}).values())
        self._executor.shutdown(wait=not processes, cancel_futures=True)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0))
            if process.is_alive():
                process.kill()
                process.join()
