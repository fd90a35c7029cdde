"""Decode clips in the background, in processes that are killed where they hang over a clip; or in threads."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from reelworks.core.worker_pool import WorkerDied, WorkerHung, WorkerPool
from reelworks.media.decode import Frames, MediaError, Request, load

_THREADS = 2
_PATIENCE_SECONDS = 5.0
# A process may also be killed from outside, for memory say; a clip whose process dies each time is to blame.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Failure:
    """Why a clip gave no frames."""

    reason: str


class DecodePool:
    """Decodes clips in the background.

    Args:
        num_workers: Spawned processes; 0 uses two threads of this process.
        timeout_seconds: A process that is at one clip for longer is killed, and the clip is a failure. A
            thread cannot be killed: with 0 workers, a decoder that hangs is waited for.
    """

    def __init__(self, num_workers: int, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._threads = ThreadPoolExecutor(num_workers or _THREADS, thread_name_prefix="decode")
        self._processes = WorkerPool() if num_workers else None

    def submit(self, request: Request) -> Future[Frames | Failure]:
        """Queue a clip; one that hangs, or whose process dies again and again, is a failure as any other."""
        return self._threads.submit(_read if self._processes is None else self._read_in_process, request)

    def _read_in_process(self, request: Request) -> Frames | Failure:
        assert self._processes is not None
        for _ in range(_ATTEMPTS):
            try:
                return self._processes.call(_read, request, self.timeout_seconds)
            except WorkerHung:
                return Failure(f"decoding took more than {self.timeout_seconds:g} s and was ended")
            except WorkerDied:
                continue
        return Failure("the decoder crashed on it")

    def close(self) -> None:
        """Stop the workers; what is queued is dropped, and a process that hangs in a decoder is killed."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.close(_PATIENCE_SECONDS)
        self._threads.shutdown()


def _read(request: Request) -> Frames | Failure:
    """Decode one clip; every failure of the file is a value, so that it never stops a worker."""
    try:
        return load(request)
    except MediaError as error:
        return Failure(str(error))
