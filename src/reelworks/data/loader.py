"""Micro-batches in the order of the plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.core.shape import Shape
from reelworks.media import masks
from reelworks.media.decode import Frames, Request
from reelworks.media.decode_pool import DecodePool, Failure, Job
from reelworks.schedule import plan as planning

_CLIPS = "clips"
_Jobs = dict[str, list[Job | None]]  # by kind of companion, those of the clips themselves under `_CLIPS`


@dataclass(frozen=True)
class Work:
    """One micro-batch to be read, every choice about its clips already drawn.

    Attributes:
        epoch, row: Place in the data.
        index: Place of the micro-batch in its step, for seeds of the model's own randomness.
        last: True for the last micro-batch that this rank has in the row.
        filler: True where the rank only keeps the others company: nothing of it counts.
        bucket: Index into the bucket table.
        uids, copies: Identities, one for each clip.
        showing: 0 where a clip is shown, n where it is shown for the nth time more, -1 where it only pads.
        requests: What to decode.
        captions, fps: As the model is told them.
        companions: What to decode of companions by kind, None for a clip whose dataset has none.
        preserved: True for a clip that teaches what the base says of it, not what it is.
    """

    epoch: int
    row: int
    index: int
    last: bool
    filler: bool
    bucket: int
    shape: Shape
    uids: NDArray[np.uint64]
    copies: NDArray[np.int64]
    showing: NDArray[np.int32]
    requests: tuple[Request, ...]
    captions: tuple[str, ...]
    fps: tuple[float, ...]
    companions: Mapping[str, tuple[Request | None, ...]] = field(default_factory=dict)
    preserved: tuple[bool, ...] = ()

    @property
    def real(self) -> NDArray[np.bool_]:
        """False where a clip only pads the micro-batch."""
        real: NDArray[np.bool_] = self.showing >= 0
        return real

    @property
    def first(self) -> NDArray[np.bool_]:
        """True where the clip is not shown once more."""
        first: NDArray[np.bool_] = self.showing == 0
        return first

    @property
    def draw_copies(self) -> NDArray[np.int64]:
        """What tells the draws about a clip's copies and showings apart."""
        return planning.draw_copies(self.copies, self.showing)


@dataclass(frozen=True)
class MicroBatch:
    """Decoded work.

    Attributes:
        work: What was asked for.
        frames: `[B, T, H, W, 3]` uint8; zeros where a clip failed.
        counts: `[B]` True where a clip counts in the loss: real, decoded, and not of a filler.
        failures: Place in the micro-batch and reason, copies that pad left out.
        companions: `[B, T, H, W, 3]` uint8 by kind; white where a clip has none.
    """

    work: Work
    frames: Tensor
    counts: Tensor
    failures: tuple[tuple[int, str], ...]
    companions: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Clips that could not be decoded; a second showing is told, but is no clip of its own."""
        return sum(bool(self.work.first[place]) for place, _ in self.failures)


def read_ahead(work: Iterable[Work], pool: DecodePool, depth: int) -> Iterator[MicroBatch]:
    """Yield micro-batches in the order of the work, with up to `depth` of them decoding ahead.

    The work may go on over the edge of an epoch; reading ahead then does too.
    """
    queue: deque[tuple[Work, _Jobs]] = deque()
    source = iter(work)
    while True:
        while len(queue) < depth and (item := next(source, None)) is not None:
            queue.append((item, _submit(item, pool)))
        if not queue:
            return
        item, jobs = queue.popleft()
        yield _collect(item, jobs, pool)


def _submit(work: Work, pool: DecodePool) -> _Jobs:
    """Queue a micro-batch, each clip with its companions behind it."""
    jobs: _Jobs = {kind: [] for kind in (_CLIPS, *work.companions)}
    for place, request in enumerate(work.requests):
        jobs[_CLIPS].append(pool.submit(request))
        for kind, requests in work.companions.items():
            beside = requests[place]
            jobs[kind].append(None if beside is None else pool.submit(beside))
    return jobs


def _collect(work: Work, jobs: _Jobs, pool: DecodePool) -> MicroBatch:
    size = (len(work.requests), work.shape.num_frames, work.shape.height, work.shape.width, 3)
    frames = {kind: np.full(size, 0 if kind == _CLIPS else 255, dtype=np.uint8) for kind in jobs}
    failures: dict[int, str] = {}
    for kind, queued in jobs.items():
        for place, job in enumerate(queued):
            if job is None:
                continue
            result = _useful(kind, pool.result(job))
            if not isinstance(result, Failure):
                frames[kind][place] = result
            elif kind == _CLIPS:
                failures[place] = result.reason
            else:
                failures.setdefault(place, f"{kind} {job.request.path}: {result.reason}")
    real = work.real & (not work.filler)
    counts = real.copy()
    counts[list(failures)] = False
    told = tuple((place, reason) for place, reason in sorted(failures.items()) if real[place])
    decoded = {kind: torch.from_numpy(array) for kind, array in frames.items()}
    return MicroBatch(work, decoded.pop(_CLIPS), torch.from_numpy(counts), told, decoded)


def _useful(kind: str, result: Frames | Failure) -> Frames | Failure:
    """Refuse a mask by which the clip would have no loss."""
    if kind == "loss_mask" and not isinstance(result, Failure) and not masks.counts(result):
        return Failure(masks.EMPTY)
    return result
