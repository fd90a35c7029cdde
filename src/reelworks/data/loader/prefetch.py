"""Decode micro-batches ahead of training: out of order inside, in order outside, within a budget of bytes."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future

import numpy as np
import torch
from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.catalog.sources import SOUNDS
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest, StreamState, valid_clips
from reelworks.data.media import decode
from reelworks.data.media.config import PREFETCH_BYTES
from reelworks.data.media.decode import Request
from reelworks.data.media.decode_pool import Decoded, DecodePool, Failure
from reelworks.data.media.location import MediaPath
from reelworks.data.media.sound import SoundRequest

_CLIPS = "clips"
_SOUND = "sound"
_NO_COMPANION = 255  # white
# More micro-batches than these bridge no longer stall; they would only take memory.
_MOST_AHEAD = 64
# Requests are prepared while training waits, so the queue grows over several steps.
_MOST_AT_ONCE = 4
# A long queue is refilled by a few small micro-batches at a time, of so many clips at most: the requests of the first take
# twice the processor time of another's, since after a step their code and data are in no cache.
_CLIPS_AT_ONCE = 16
_WARN_SECONDS = 30.0
# Decode jobs by kind of companion; the jobs of the clips themselves are under `_CLIPS`.
_Jobs = dict[str, list[Future[Decoded] | None]]


class _Pending:
    """A micro-batch that is being decoded, each clip straight to its place."""

    def __init__(self, work: MicroBatchRequest, pool: DecodePool) -> None:
        self.request = work
        self._frames = {kind: pool.array(size) for kind, size in _sizes(work).items()}
        self._jobs: _Jobs = {kind: [] for kind in self._frames}
        for kind, requests in _by_kind(work).items():
            for index, request in enumerate(requests):
                slot = self._frames[kind].slot(index)
                self._jobs[kind].append(None if request is None else pool.submit(request, slot))
        self._undone = [job for job in itertools.chain(*self._jobs.values()) if job is not None]
        self._done_bytes = 0
        self.stops: UserError | None = None

    def decoded_bytes(self) -> int:
        """Return the bytes of the clips that are done; each clip is asked about until it is."""
        undone = []
        for job in self._undone:
            if not job.done():
                undone.append(job)
            elif not job.cancelled() and job.exception() is None:
                result = job.result()
                self._done_bytes += 0 if isinstance(result, Failure) else result.nbytes
        self._undone = undone
        return self._done_bytes

    @property
    def is_done(self) -> bool:
        """Whether all clips were done when they were last asked about."""
        return not self._undone

    def cancel(self) -> None:
        """Drop the clips that are still queued."""
        for job in itertools.chain(*self._jobs.values()):
            if job is not None:
                job.cancel()

    def collect(self) -> tuple[dict[str, Tensor], dict[int, str]]:
        """Wait for the clips, and return the frames by kind, and the reason of each clip that failed."""
        failures: dict[int, str] = {}
        for kind, jobs in self._jobs.items():
            frames = self._frames[kind].array
            for index, job in enumerate(jobs):
                try:
                    result = None if job is None else _result(job, self._request(kind, index).path)
                except UserError as error:
                    self.stops, result = error, Failure(error.problem)
                reason = "" if result is None else self._reason(kind, index, result)
                if reason:
                    failures.setdefault(index, reason)
                if reason or result is None:
                    # A worker may have died while writing.
                    frames[index] = 0 if kind in (_CLIPS, _SOUND, *SOUNDS) else _NO_COMPANION
            self._frames[kind].close_file()
        made = {kind: torch.from_numpy(memory.array) for kind, memory in self._frames.items()}
        return {k: v.view(torch.int16) if k in (_SOUND, *SOUNDS) else v for k, v in made.items()}, failures

    def _reason(self, kind: str, index: int, result: Decoded) -> str:
        if kind == "loss_mask" and isinstance(result, np.ndarray) and not decode.has_white_area(result):
            result = Failure(decode.EMPTY)  # the clip would have no loss
        if not isinstance(result, Failure):
            return ""
        if kind == _CLIPS:
            return result.reason
        if kind == _SOUND:
            return f"sound: {result.reason}"
        return f"{kind} {self._request(kind, index).path}: {result.reason}"

    def _request(self, kind: str, index: int) -> Request | SoundRequest:
        request = _by_kind(self.request)[kind][index]
        assert request is not None  # it was submitted
        return request


def _by_kind(work: MicroBatchRequest) -> dict[str, Sequence[Request | SoundRequest | None]]:
    """Return the requests of clips, of each kind of companion, and of sound if any is read."""
    return {_CLIPS: work.requests, **work.companions, **({_SOUND: work.sounds} if work.sounds else {})}


def _sizes(work: MicroBatchRequest) -> dict[str, tuple[int, ...]]:
    """Return the sizes of what is read by kind: sources may have sizes of their own, and no sound may be left to be read."""
    sizes = dict[str, tuple[int, ...]]()
    for kind, requests in _by_kind(work).items():
        first = None if kind == _CLIPS else next((request for request in requests if request is not None), None)
        of_one = (0, 0) if first is None and kind == _SOUND else _size(first or work)
        sizes[kind] = (len(requests), *of_one)
    return sizes


def _size(request: Request | SoundRequest | MicroBatchRequest) -> tuple[int, ...]:
    if isinstance(request, SoundRequest):
        return request.num_samples, 2 * request.channels
    return request.shape.num_frames, request.shape.height, request.shape.width, 3


def _bytes(work: MicroBatchRequest) -> int:
    return work.held_bytes + sum(map(math.prod, _sizes(work).values()))


def _result(job: Future[Decoded], path: MediaPath) -> Decoded:
    while True:
        try:
            return job.result(timeout=_WARN_SECONDS)
        except TimeoutError:
            logger.warning(f"still waiting after {_WARN_SECONDS:g} s for a clip to be decoded: {path}")


class _ReadAhead:
    """Queue of micro-batches that are decoding, in the order in which they are delivered."""

    def __init__(self, work: Iterable[MicroBatchRequest], pool: DecodePool, budget_bytes: int) -> None:
        self._source, self._pool, self._budget_bytes = iter(work), pool, budget_bytes
        self._queue: deque[_Pending] = deque()
        self._queued_bytes = 0
        # The end of the queue, from the first that was not decoded on, and the decoded bytes of those before it.
        self._decoding: deque[_Pending] = deque()
        self._done_bytes = 0
        self._error: Exception | None = None
        self._next = self._take()

    def fill(self) -> None:
        """Queue micro-batches while the budget lasts, at least one."""
        if self._next is None:
            return
        # By how many like this one a long queue is refilled; those without a clip cost nothing here.
        clips = len(self._next.requests)
        at_once = max(1, min(_MOST_AT_ONCE, _CLIPS_AT_ONCE // clips)) if clips else 1
        if len(self._queue) > _MOST_AHEAD - at_once:
            return
        for _ in range(_MOST_AT_ONCE):
            work = self._next
            if work is None or len(self._queue) >= _MOST_AHEAD:
                return
            size = _bytes(work)
            if self._queue and self._queued_bytes + size > self._budget_bytes:
                return
            self._queue.append(_Pending(work, self._pool))
            self._decoding.append(self._queue[-1])
            self._queued_bytes += size
            self._next = self._take()

    def deliver(self) -> MicroBatch | None:
        """Return the next micro-batch when it is decoded, None after the last.

        Raises:
            Exception: What the source raised, after all that it had given.
        """
        began = time.perf_counter()
        if self._queue or self._next is not None:
            self._pool.require_open()
        self.fill()
        if not self._queue:
            if self._error is not None:
                raise self._error
            return None
        head = self._pop()
        self.fill()  # decoding goes on while this micro-batch is waited for and trained
        frames, failures = head.collect()
        p50, p99 = self._pool.percentiles(50, 99)
        state = StreamState(
            wait_seconds=time.perf_counter() - began,
            queue_bytes=self._decoded_bytes(),
            decode_p50_seconds=p50,
            decode_p99_seconds=p99,
        )
        is_valid, real_failures = valid_clips(head.request, failures)
        clips, sound = frames.pop(_CLIPS), frames.pop(_SOUND, None)
        return MicroBatch(head.request, clips, is_valid, real_failures, frames, sound, state, head.stops)

    def _pop(self) -> _Pending:
        """Take the first micro-batch from the queue."""
        head = self._queue.popleft()
        self._queued_bytes -= _bytes(head.request)
        if self._decoding and self._decoding[0] is head:
            self._decoding.popleft()
        else:
            self._done_bytes -= head.decoded_bytes()
        return head

    def _decoded_bytes(self) -> int:
        """Return the bytes of the clips in the queue that are done."""
        end = [pending.decoded_bytes() for pending in self._decoding]
        while self._decoding and self._decoding[0].is_done:
            self._decoding.popleft()
            self._done_bytes += end.pop(0)
        return self._done_bytes + sum(end)

    def cancel(self) -> None:
        """Drop what is queued."""
        for pending in self._queue:
            pending.cancel()

    def _take(self) -> MicroBatchRequest | None:
        try:
            return next(self._source, None)
        except Exception as error:  # it concerns later steps; those before it are trained first
            self._error = error
            return None


def read_ahead(
    work: Iterable[MicroBatchRequest], pool: DecodePool, budget_bytes: int = PREFETCH_BYTES
) -> Iterator[MicroBatch]:
    """Yield the micro-batches of `work` in its order, while those behind them are decoded ahead.

    Clips are begun in this order and finished in any. Frames, and what is held with them, are read ahead in at most
    `budget_bytes`, or one micro-batch if it is larger. Reading ahead crosses the end of an epoch if `work` does. An error
    of `work` is raised after all micro-batches before it.
    """
    ahead = _ReadAhead(work, pool, budget_bytes)
    try:
        while (micro_batch := ahead.deliver()) is not None:
            yield micro_batch
    finally:
        ahead.cancel()
