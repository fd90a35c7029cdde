"""Compare the time that each rank computes with the plan, and find ranks that are slow for what they do.

Each rank notes the time of the forward pass of each micro-batch, by its clock or by the GPU's, which nothing waits for.
Every `train.log_balance_every` steps the ranks exchange their notes, and the main rank compares them. Forward passes
stand for the backward passes, too, whose end cannot be told from waiting for other ranks. If weights are sharded over
ranks, forward passes wait for each other as well, so that their times say nothing about the rank, and none are noted.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.training.step import optimizers

SLOW = 1.15  # a rank that takes this many times what others take for the same micro-batches is named
FEWEST = 10  # micro-batches of a rank without which it is not judged


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


class Straggler(NamedTuple):
    """A rank that is slow for what it does: it takes `factor` times what is usual for its micro-batches."""

    rank: int
    host: str
    factor: float


@dataclass(frozen=True)
class Balance:
    """Comparison of ranks over some steps.

    Attributes:
        planned, measured: Share of the time in which ranks wait for the slowest one, if they wait after each micro-batch.
        seconds_by_rank: Summed forward passes of each rank.
        ms_by_bucket: Median milliseconds of a forward pass for each clip, by index of the bucket.
    """

    planned: float
    measured: float
    seconds_by_rank: list[float]
    ms_by_bucket: dict[int, float]
    stragglers: list[Straggler]


def compare(ranks: Sequence[RankNotes]) -> Balance:
    """Compare the notes of all ranks, of which the i-th are of the same column of a step."""
    columns = list(zip(*(rank.notes for rank in ranks), strict=True))
    by_rank = [_seconds_per_clip(rank.notes) for rank in ranks]
    buckets = sorted({bucket for own in by_rank for bucket in own})
    whole = {bucket: [s for own in by_rank for s in own.get(bucket, [])] for bucket in buckets}
    return Balance(
        planned=_waiting([[note.planned for note in column] for column in columns]),
        measured=_waiting([[note.seconds for note in column] for column in columns]),
        seconds_by_rank=[sum(note.seconds for note in rank.notes) for rank in ranks],
        ms_by_bucket={bucket: 1000 * statistics.median(seconds) for bucket, seconds in whole.items()},
        stragglers=_stragglers(ranks, by_rank),
    )


def _seconds_per_clip(notes: Sequence[Note]) -> dict[int, list[float]]:
    seconds: dict[int, list[float]] = defaultdict(list)
    for note in notes:
        if note.planned:
            seconds[note.bucket].append(note.seconds / note.clips)
    return seconds


def _waiting(columns: list[list[float]]) -> float:
    spent = sum(max(column) for column in columns)
    return 1 - sum(statistics.fmean(column) for column in columns) / spent if spent else 0.0


def _stragglers(ranks: Sequence[RankNotes], by_rank: list[dict[int, list[float]]]) -> list[Straggler]:
    """Compare each rank with the usual time of its own micro-batches, so that the plan's costs need not be right.

    Each rank has one vote on the usual time of a bucket, and buckets of a single rank tell nothing.
    """
    votes: dict[int, list[float]] = defaultdict(list)
    for own in by_rank:
        for bucket, seconds in own.items():
            votes[bucket].append(statistics.median(seconds))
    usual = {bucket: statistics.median(of_ranks) for bucket, of_ranks in votes.items() if len(of_ranks) > 1}
    found = []
    for index, rank in enumerate(ranks):
        comparable = [note for note in rank.notes if note.planned and note.bucket in usual]
        expected = sum(usual[note.bucket] * note.clips for note in comparable)
        if len(comparable) >= FEWEST and expected:
            factor = sum(note.seconds for note in comparable) / expected
            if factor >= SLOW:
                found.append(Straggler(index, rank.host, factor))
    return sorted(found, key=lambda one: -one.factor)


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

    def take(self, costs: Sequence[int]) -> RankNotes:
        """Return the notes and forget them; the device must be done with the passes. `costs` are planned ones of a clip."""
        noted, self._noted = self._noted, []
        notes = [_note(work, costs, read) for work, read in noted]
        return RankNotes(socket.gethostname(), notes)


def _note(work: MicroBatchRequest, costs: Sequence[int], read: Callable[[], float]) -> Note:
    clips = len(work.uids)
    return (
        Note(work.bucket, clips, 0, 0.0)
        if work.is_idle
        else Note(work.bucket, clips, clips * costs[work.bucket], read())
    )


def can_time_forward(module: nn.Module) -> bool:
    """Whether forward passes of a rank are its own: no weight is sharded over ranks, and collected in the pass."""
    return all(map(optimizers.is_whole, module.parameters()))
