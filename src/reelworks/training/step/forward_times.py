"""Times of this rank's forward passes, which ranks compare now and then."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.data.schedule.plan import PlanSpec


class Note(NamedTuple):
    """A micro-batch of a rank: its bucket, clips with padding, planned cost, and seconds; cost and seconds 0 if idle."""

    bucket: int
    clips: int
    planned: float
    seconds: float


class RankNotes(NamedTuple):
    """Notes of a rank since the last exchange, in the order of its micro-batches."""

    host: str
    notes: list[Note]


@dataclass
class ForwardTimes:
    """Times of this rank's forward passes since the last exchange; nothing is noted unless it `is_on`.

    Those of the first step are dropped: caches, compilers and allocators warm up in it.
    """

    device: torch.device
    is_on: bool
    _noted: list[tuple[MicroBatchRequest, Callable[[], float]]] = field(default_factory=list)
    _is_warm: bool = False

    @contextmanager
    def noting(self, work: MicroBatchRequest) -> Iterator[None]:
        """Note the time of what is run in the context, the forward pass of a micro-batch."""
        if not self.is_on or not self._is_warm:
            yield
            self._is_warm = self._is_warm or work.ends_step
        elif self.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            yield
            end.record()
            self._noted.append((work, lambda: begin.elapsed_time(end) / 1000))
        else:
            began = time.perf_counter()
            yield
            seconds = time.perf_counter() - began
            self._noted.append((work, lambda: seconds))

    def take(self, spec: PlanSpec) -> RankNotes:
        """Return the notes and forget them; the device must be done with the passes. `spec` has the planned costs."""
        noted, self._noted = self._noted, []
        bucket, clips = np.array([(work.bucket, len(work.uids)) for work, _ in noted], dtype=np.int64).reshape(-1, 2).T
        notes = [
            Note(work.bucket, len(work.uids), *((0, 0.0) if work.is_idle else (cost, read())))
            for (work, read), cost in zip(noted, spec.costs(bucket, clips).tolist(), strict=True)
        ]
        return RankNotes(socket.gethostname(), notes)
