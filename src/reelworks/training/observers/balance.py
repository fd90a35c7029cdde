"""Compare the time that each rank computes with the plan, and find ranks that are slow for what they do.

Each rank notes the time of the forward pass of each micro-batch, by its clock or by the GPU's, which nothing waits for.
Every `train.log_balance_every` steps the ranks exchange their notes, and the main rank compares them. Forward passes
stand for the backward passes, too, whose end cannot be told from waiting for other ranks. If weights are sharded over
ranks, forward passes wait for each other as well, so that their times say nothing about the rank, and none are noted.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reelworks.core.log import logger
from reelworks.data.loader.position import DataPosition
from reelworks.training.observers.observer import Pause, StepObserver, TrainedStep, Training
from reelworks.training.step import progress
from reelworks.training.step.forward_times import ForwardTimes, Note, RankNotes

SLOW = 1.15  # a rank that takes this many times what others take for the same micro-batches is named
FEWEST = 10  # micro-batches of a rank without which it is not judged


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


@dataclass(frozen=True)
class BalanceReports(StepObserver):
    """Compare ranks now and then, and name a slow one to the user once; does nothing if no times are noted."""

    training: Training
    times: ForwardTimes
    _named: set[int] = field(default_factory=set)

    def after_step(self, step: TrainedStep) -> None:
        """Compare ranks if that is due."""
        if progress.is_due(self.training.data.recipe.train.log_balance_every, step.number):
            self._compare(step.position, step.number)

    def end(self, now: Pause) -> None:
        """Compare ranks over the last steps."""
        self._compare(now.position, now.step)

    def _compare(self, position: DataPosition, step: int) -> None:
        world = self.training.world
        if not self.times.is_on:
            return
        ranks: list[Any] = world.gather(self.times.take(position.spec))
        if not world.is_main or not ranks[0].notes:
            return
        found, buckets, log = compare(ranks), self.training.data.table.buckets, self.training.log
        log.event(
            "balance",
            step=step,
            planned=found.planned,
            measured=found.measured,
            seconds_by_rank=found.seconds_by_rank,
            forward_ms_per_clip={buckets[i].name: ms for i, ms in found.ms_by_bucket.items()},
            stragglers=[one._asdict() for one in found.stragglers],
        )
        log.curves(step, {"balance/planned": found.planned, "balance/measured": found.measured})
        for one in found.stragglers:
            if one.rank not in self._named:
                self._named.add(one.rank)
                logger.warning(
                    f"rank {one.rank} on {one.host} takes {one.factor:.2f} times as long as usual for its micro-batches, "
                    "and all others wait for it: see what else runs there, and its clocks and temperature"
                )
