"""Micro-batches in the order of the plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.core.shape import Shape
from reelworks.media.load import Request
from reelworks.schedule import plan as planning
from reelworks.stream.crew import Failure
from reelworks.stream.workers import DecodePool, Job


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
    """

    work: Work
    frames: Tensor
    counts: Tensor
    failures: tuple[tuple[int, str], ...]

    @property
    def failed(self) -> int:
        """Clips that could not be decoded; a second showing is told, but is no clip of its own."""
        return sum(bool(self.work.first[place]) for place, _ in self.failures)


def read_ahead(work: Iterable[Work], pool: DecodePool, depth: int) -> Iterator[MicroBatch]:
    """Yield micro-batches in the order of the work, with up to `depth` of them decoding ahead.

    The work may go on over the edge of an epoch; reading ahead then does too.
    """
    queue: deque[tuple[Work, list[Job]]] = deque()
    source = iter(work)
    while True:
        while len(queue) < depth and (item := next(source, None)) is not None:
            queue.append((item, [pool.submit(request) for request in item.requests]))
        if not queue:
            return
        item, jobs = queue.popleft()
        yield _collect(item, jobs, pool)


def _collect(work: Work, jobs: list[Job], pool: DecodePool) -> MicroBatch:
    shape = work.shape
    frames = np.zeros((len(jobs), shape.num_frames, shape.height, shape.width, 3), dtype=np.uint8)
    counts = work.real & (not work.filler)
    failures = []
    for place, job in enumerate(jobs):
        result = pool.result(job)
        if isinstance(result, Failure):
            if counts[place]:
                failures.append((place, result.reason))
            counts = counts.copy()
            counts[place] = False
        else:
            frames[place] = result
    return MicroBatch(work, torch.from_numpy(frames), torch.from_numpy(counts), tuple(failures))
