"""Decode clips in the background, in threads or in processes that are killed if they hang on a clip."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from reelworks.core.worker_pool import WorkerDied, WorkerHung, WorkerPool
from reelworks.media.decode import Frames, MediaError, Request, load

_THREADS = 2
_PATIENCE_SECONDS = 5.0
# A process may be killed from outside, e.g. for memory; a clip is blamed only if every attempt dies.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Failure:
    """Reason why a clip could not be decoded."""

    reason: str


class DecodePool:
    """Decodes clips in the background.

    Args:
        num_workers: Spawned processes; 0 uses two threads of this process.
        timeout_seconds: Seconds that a process may spend on one clip before it is killed and the clip fails.
            A thread cannot be killed: with 0 workers, a decoder that hangs is waited for.
    """

    def __init__(self, num_workers: int, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._threads = ThreadPoolExecutor(num_workers or _THREADS, thread_name_prefix="decode")
        self._processes = WorkerPool() if num_workers else None

    def submit(self, request: Request) -> Future[Frames | Failure]:
        """Queue a clip; one that hangs, or whose process dies in every attempt, results in a `Failure`."""
        return self._threads.submit(_read if self._processes is None else self._read_in_process, request)

    def _read_in_process(self, request: Request) -> Frames | Failure:
        assert self._processes is not None
        for _ in range(_ATTEMPTS):
            try:
                return self._processes.call(_read, request, self.timeout_seconds)
            except WorkerHung:
                return Failure(f"decoding took more than {self.timeout_seconds:g} s and was stopped")
            except WorkerDied:
                continue
        return Failure("the decoder crashed on it")

    def close(self) -> None:
        """Stop the workers: drop queued clips, and kill a process that hangs in a decoder."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.close(_PATIENCE_SECONDS)
        self._threads.shutdown()


def _read(request: Request) -> Frames | Failure:
    """Decode one clip; return a file's failure as a value, so that it never stops a worker."""
    try:
        return load(request)
    except MediaError as error:
        return Failure(str(error))
