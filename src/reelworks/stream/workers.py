"""A pool that decodes clips ahead of training and outlives its workers."""

from __future__ import annotations

import itertools
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from reelworks.media.load import Frames, Request
from reelworks.stream.crew import Crew, Failure

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
    crew: Crew
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
        self._crew = Crew(num_workers)

    def submit(self, request: Request) -> Job:
        """Queue a clip."""
        number = next(self._numbers)
        return Job(number, request, *self._queue(number, request))

    def _queue(self, number: int, request: Request) -> tuple[Crew, Future[Frames | Failure]]:
        try:
            return self._crew, self._crew.submit(number, request)
        except BrokenProcessPool:
            self._crew.abandon()
            self._crew = Crew(self.num_workers)
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
