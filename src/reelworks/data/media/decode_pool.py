"""Decode clips in the background, in threads that are left behind or processes that are killed if they hang on a clip."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from reelworks.core.shared_array import SharedArray, Slot
from reelworks.core.worker_pool import ThreadCalls, WorkerDied, WorkerHung, WorkerPool, WorkerStopped
from reelworks.data.media import decode, location, sound
from reelworks.data.media.decode import Frames, Request
from reelworks.data.media.patience import Patience
from reelworks.data.media.reading import MediaError, NotGivenError
from reelworks.data.media.sound import SoundRequest

T = TypeVar("T")
R = TypeVar("R")
THREADS_PER_WORKER = 2
_THREADS = 2  # without workers
_PATIENCE_SECONDS = 5.0
MOST_SECONDS = 120.0  # for a clip that no pool decodes
# A process may be killed from outside, e.g. for memory; a clip is blamed only if every attempt dies.
_ATTEMPTS = 3
_TRIES = 5  # of a clip that a busy storage does not give
_WINDOW = 1000


@dataclass(frozen=True)
class Failure:
    """Reason why a clip could not be decoded.

    If it is one of the storage, the clip is to blame after so many `tries` beside which the storage gave others.
    """

    reason: str
    tries: int = 0


Decoded = Frames | Failure


@dataclass(frozen=True)
class _Read:
    result: Decoded
    seconds: float | None = None  # None if its process died or was killed


class DecodePool:
    """Decodes clips in the background, in threads or in processes; queued clips are begun in the order of submission.

    Args:
        num_workers: Spawned processes, each with `THREADS_PER_WORKER` threads; 0 uses two threads of this process.
        timeout_seconds: Seconds that a process may spend on one clip before it is killed and the clip fails. Clips that
            its other threads were decoding are decoded again.
            A thread cannot be killed: with 0 workers, one that hangs is left behind, and goes on until the program ends.
        patience_seconds: Seconds to wait for a storage that gives no clip; 0 makes it a `Failure` at once.
        leaves: Whether to wait no longer.

    Attributes:
        decode_seconds: Time that each of the last 1000 clips took in its decoder.
    """

    def __init__(
        self,
        num_workers: int,
        timeout_seconds: float,
        *,
        patience_seconds: float = 0.0,
        leaves: Callable[[], bool] = lambda: False,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._pid, self._variables = os.getpid(), dict(os.environ)
        self._closed = False
        self.decode_seconds: deque[float] = deque(maxlen=_WINDOW)
        self._decoded = 0  # clips so far
        self._percentiles: dict[tuple[float, ...], tuple[int, list[float]]] = {}  # and at which clip they were computed
        self._threads = ThreadPoolExecutor(num_workers * THREADS_PER_WORKER or _THREADS, "decode")
        self._processes = WorkerPool(THREADS_PER_WORKER, setting="data.num_workers") if num_workers else None
        self._calls = ThreadCalls()
        self._patience = Patience(patience_seconds, leaves)

    @property
    def may_be_used(self) -> bool:
        """Whether an iteration may begin with it: in its own process, and with the variables that its workers got."""
        return self.is_of_this_process and (self._processes is None or self._variables == os.environ)

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked from the pool's own, where none of its threads run."""
        return os.getpid() == self._pid

    def require_open(self) -> None:
        """Refuse to wait for clips that nobody decodes any more."""
        if not self.is_of_this_process:
            raise RuntimeError(
                "this iteration began in another process, whose threads are not in this fork; iterate the loader anew"
            )
        if self._closed:
            raise RuntimeError("the decoders were closed during this iteration; iterate the loader anew")

    def array(self, shape: tuple[int, ...]) -> SharedArray:
        """Return zeros that `submit` can decode into without a copy between processes."""
        return SharedArray(shape, shared=self._processes is not None)

    def submit(self, request: Request | SoundRequest, into: Slot | None = None) -> Future[Decoded]:
        """Queue a clip or its sound, whose samples come as bytes `[S, 2 · channels]`; one that hangs, or whose process dies in every attempt, results in a `Failure`.

        The future raises `UserError` for what is no clip's fault: `StorageAway`, or the disk of the cache is full.

        Args:
            into: Place for the result, of at least its bytes; without it, it has memory of its own.
        """
        self._patience.ask(request.path)
        return self._threads.submit(self._decode, request, into)

    def percentiles(self, *percents: float) -> list[float | None]:
        """Return percentiles of `decode_seconds`, None before the first clip; at most a fiftieth of them is newer."""
        if not (done := self._decoded):
            return [None for _ in percents]
        at, known = self._percentiles.get(percents, (0, []))
        if not at or done - at > len(self.decode_seconds) / 50:
            at, known = done, np.percentile(list(self.decode_seconds), percents).tolist()
            self._percentiles[percents] = at, known
        return list(known)

    def close(self) -> None:
        """Stop the workers: drop queued clips, and kill a process that hangs in a decoder.

        In a fork of the pool's process it does nothing.
        """
        if not self.is_of_this_process:
            return
        self._closed = self._patience.is_over = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.close(_PATIENCE_SECONDS)
        self._calls.close()
        self._threads.shutdown()

    def close_after(self, owner: object) -> None:
        """Close the pool once its owner is collected, in a thread of its own.

        The garbage collector may run in any thread, also within one that begins and holds what others need to end.
        """
        _closer(os.getpid())
        weakref.finalize(owner, _UNUSED.put, self).atexit = False  # processes end at the exit by themselves

    def _decode(self, request: Request | SoundRequest, into: Slot | None) -> Decoded:
        read, tries = self._attempt(request, into), 0
        while self._patience.seconds and isinstance(read.result, Failure) and tries < read.result.tries:
            tries += self._patience.wait(request.path, read.result.reason)
            read = self._attempt(request, into)
            if not isinstance(read.result, Failure):
                self._patience.end(request.path)
        if read.seconds is not None:
            self.decode_seconds.append(read.seconds)
            self._decoded += 1
        if isinstance(read.result, Failure):
            return read.result
        if into is None or np.may_share_memory(read.result, into.array):  # where a process has written it already
            return read.result
        place = into.array.reshape(-1)[: read.result.size].reshape(read.result.shape)
        place[...] = read.result
        return place

    def _attempt(self, request: Request | SoundRequest, into: Slot | None) -> _Read:
        deaths = 0
        while deaths < _ATTEMPTS:
            try:
                if self._processes is None:
                    return self._calls.call(_read, request, self.timeout_seconds)
                # A process that dies takes the clips of its other threads with it; alone, a clip cannot be such a victim.
                return self._processes.call(_read, request, self.timeout_seconds, into=into, alone=deaths > 0)
            except WorkerHung:
                of_storage = self._patience.seconds > 0 and not location.is_here(request.path)
                return _Read(Failure(_too_long(self.timeout_seconds), int(of_storage)))
            except WorkerStopped:
                continue
            except WorkerDied:
                deaths += 1
        return _Read(Failure("the decoder crashed on it"))


_UNUSED: SimpleQueue[DecodePool] = SimpleQueue()


@cache
def _closer(pid: int) -> threading.Thread:
    """Return the thread of this process, which a fork lacks, that closes pools of which nobody waits for the end."""

    def work() -> None:
        while True:
            _UNUSED.get().close()

    thread = threading.Thread(target=work, name="closer", daemon=True)
    thread.start()
    return thread


def within_limit(read: Callable[[T], R], value: T) -> R:
    """Return `read(value)`, made in a thread of its own, which is left behind if its decoder hangs.

    Raises:
        MediaError: It took more than `MOST_SECONDS`.
    """
    try:
        return ThreadCalls().call(read, value, MOST_SECONDS)
    except WorkerHung:
        raise MediaError(_too_long(MOST_SECONDS)) from None


def load(request: Request | SoundRequest) -> NDArray[Any]:
    """Decode one clip or sound now, as `decode.load` and `sound.load` do, within `MOST_SECONDS`."""
    return within_limit(_loaded, request)


def _loaded(request: Request | SoundRequest) -> NDArray[Any]:
    return sound.load(request) if isinstance(request, SoundRequest) else decode.load(request)


def _too_long(seconds: float) -> str:
    return f"decoding took more than {seconds:g} s and was stopped"


def _read(request: Request | SoundRequest) -> _Read:
    """Decode one clip; return a file's failure as a value, so that it never stops a worker."""
    began = time.perf_counter()
    result: Decoded
    try:
        # Arrays that are not contiguous would be copied once more on their way between processes.
        result = np.ascontiguousarray(_loaded(request).view(np.uint8))
    except NotGivenError as error:
        # A refusal is of one file or of all; a storage that is busy gives some of them, and this one later.
        result = Failure(str(error), _TRIES if error.may_vanish else 1)
    except MediaError as error:
        result = Failure(str(error))
    return _Read(result, time.perf_counter() - began)
