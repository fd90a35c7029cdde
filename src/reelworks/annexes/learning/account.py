"""Keep an account of each clip's losses, from those of training itself and from measurements with fixed noise.

Each rank notes the losses of its own clips, which the step reads from the device together with its sums. They are brought
together when the account is asked for, at a save or a measurement, and added in the order of the plan: so the account
depends neither on the ranks nor on when it was asked for, and one that goes on from a checkpoint ends equal to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelworks.annexes.learning.losses import MEASURED, ClipLossError, ClipLosses, LossesAbout, Usual
from reelworks.core import blocks
from reelworks.core.arrays import F64, I64
from reelworks.core.log import logger
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.micro_batch import MicroBatch
from reelworks.data.loader.position import DataPosition
from reelworks.models.objectives.config import NUM_TIMESTEPS
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.step import draws

_PARTS = 10  # of the timesteps, between knots of the usual loss
_KNOTS = np.linspace(0, NUM_TIMESTEPS, _PARTS + 1)
_WINDOW = 128.0  # clips over which the usual loss is a mean, at each knot and of each bucket
_LEAST_WEIGHT = 1e-300  # so that what has none stays as it is
_FAR = 2.0  # logarithm of a ratio beyond which a loss counts as if it were there
_FIRST = 4  # times that are a clip's first
_LONGER, _RECENT = 32, 8  # times over which means of a clip reach back
_FEWEST = 4.0  # clips that tell the usual loss at a knot, for the course of it
_MOST_POINTS = 128  # of the course; when there are more, every other one is dropped
UNREADABLE = -1  # measurements of a clip that could not be decoded for one


class _TrainedClips(NamedTuple):
    """Clips that a rank trained, in arrays of one element each."""

    step: I64
    micro_batch: I64  # index in its step, over all ranks
    place: I64  # in the micro-batch
    uid: NDArray[np.uint64]
    bucket: I64
    time: F64
    loss: F64

    @classmethod
    def joined(cls, parts: Iterable[_TrainedClips]) -> _TrainedClips:
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def take(self, where: Any) -> _TrainedClips:
        return _TrainedClips(*(column[where] for column in self))


class Measured(NamedTuple):
    """Clips that a rank measured; losses are NaN where a clip could not be decoded."""

    uid: NDArray[np.uint64]
    bucket: I64
    held_out: NDArray[np.bool_]
    time: F64
    captioned: F64  # loss with the caption
    uncaptioned: F64  # loss with the empty caption
    base: F64  # loss of a LoRA's base with the empty caption; NaN where it was not computed

    @classmethod
    def joined(cls, parts: Iterable[Measured]) -> Measured:
        """Return the clips of several rounds or ranks, ordered by uid."""
        whole = cls(*map(np.concatenate, zip(*parts, strict=True)))
        return whole.take(np.argsort(whole.uid))

    def take(self, where: Any) -> Measured:
        """Return some of the clips."""
        return Measured(*(column[where] for column in self))


class _UsualLoss:
    """`Usual` with arithmetic."""

    def __init__(self, usual: Usual, buckets: list[str]) -> None:
        self.mean = np.array(usual.mean or np.zeros(len(_KNOTS)))
        self.weight = np.array(usual.weight or np.zeros(len(_KNOTS)))
        self.factor = np.array([usual.factor.get(name, 1.0) for name in buckets])
        self.factor_weight = np.array([usual.factor_weight.get(name, 0.0) for name in buckets])

    def to_usual(self, buckets: list[str]) -> Usual:
        return Usual(
            mean=self.mean.tolist(),
            weight=self.weight.tolist(),
            factor=dict(zip(buckets, self.factor.tolist(), strict=True)),
            factor_weight=dict(zip(buckets, self.factor_weight.tolist(), strict=True)),
        )

    def at(self, time: F64, bucket: I64) -> F64:
        """Return the usual loss at timesteps in buckets; NaN before the first clip."""
        known = self.weight > 0
        if not known.any():
            return np.full(len(time), np.nan)
        return np.asarray(np.interp(time, _KNOTS[known], self.mean[known]) * self.factor[bucket])

    def add(self, loss: F64, time: F64, bucket: I64) -> F64:
        """Add clips that one step trained, and return the usual loss of each after it."""
        usual = self.at(time, bucket)
        if not np.isnan(usual).any():
            loss = np.minimum(np.maximum(loss, usual * np.exp(-_FAR)), usual * np.exp(_FAR))
        place = np.minimum(np.maximum(time / NUM_TIMESTEPS, 0), 1) * _PARTS
        left = np.minimum(place.astype(np.int64), _PARTS - 1)
        knot, share = np.concatenate([left, left + 1]), np.concatenate([left + 1 - place, place - left])
        whole = loss / self.factor[bucket]
        _move(self.mean, self.weight, knot, share, np.concatenate([whole, whole]))
        if len(self.factor) > 1:
            ratio = loss * self.factor[bucket] / self.at(time, bucket)
            _move(self.factor, self.factor_weight, bucket, np.ones(len(loss)), ratio)
            # Else a loss that falls might do so in the factors alone.
            scale = np.average(self.factor, weights=self.factor_weight)
            self.factor /= scale
            self.mean *= scale
        return self.at(time, bucket)


def _move(mean: F64, weight: F64, place: I64, share: F64, values: F64) -> None:
    """Move means towards the mean of new values, each of which counts by its share."""
    new = np.bincount(place, share, minlength=len(mean))
    total = np.bincount(place, share * values, minlength=len(mean))
    weight += new
    mean += (total - new * mean) / np.maximum(weight, _LEAST_WEIGHT)
    np.minimum(weight, _WINDOW, out=weight)


@dataclass
class ClipLossAccount:
    """Account of each clip's losses, of which only the main rank has more than the counters.

    Attributes:
        trained: Clips that all steps trained, repeats included; equal on all ranks.
        visits: Measurements of clips; equal on all ranks.
        last: Step of the last of them, or -1.
    """

    trained: int = 0
    visits: int = 0
    last: int = -1
    _stored: ClipLosses | None = None
    _rows: _AccountRows | None = None
    _seed: int = 0
    _objective: Any = None
    _pending: list[_TrainedClips] = field(default_factory=list)

    def load(self, content: bytes) -> None:
        """Go on from what `to_bytes` returned; call `begin` afterwards."""
        try:
            self._stored = ClipLosses.from_bytes(content)
        except ClipLossError as error:  # what is known of clips is not worth a training
            logger.warning("losses of clips are noted anew: %s", error)
            return
        about = self._stored.about
        self.trained, self.visits, self.last = about.trained, about.visits, about.last

    def begin(self, data: RecipeData, position: DataPosition, *, is_main: bool) -> None:
        """Begin to note the losses of a training that goes on at a position."""
        self._seed, self._objective = data.recipe.seed, data.recipe.objective
        if is_main:
            self._rows = _AccountRows.lay_out(data, position, self._stored)
        self._stored = None

    def add(self, step: int, batches: Sequence[MicroBatch], losses: F64, times: F64, *, trained: int) -> None:
        """Note the clips of a rank's micro-batches of a step, which has `trained` so many clips over all ranks.

        Losses and timesteps are those of all clips of the micro-batches, one after another.
        """
        self.trained += trained
        first = 0
        for batch in batches:
            request, count = batch.request, len(batch.request.uids)
            loss, time = losses[first : first + count], times[first : first + count]
            first += count
            words = draws.draw_state(request, self._seed)
            counts = batch.is_valid.numpy() & ~draws.dropped_captions(words, self._objective)
            counts = counts & ~np.array(request.target_is_base or [False] * count) & np.isfinite(loss) & (loss > 0)
            where = np.flatnonzero(counts)
            if len(where):
                same = [np.full(len(where), number) for number in (step, request.index, request.bucket)]
                place = request.part + where * request.parts  # among the clips of its column
                columns = same[0], same[1], place, request.uids[where], same[2], time[where], loss[where]
                self._pending.append(_TrainedClips(*columns))

    def bring_together(self, world: World, step: int) -> None:
        """Add what all ranks have noted up to a step. Collective."""
        own = _TrainedClips.joined(self._pending) if self._pending else None
        self._pending = []
        parts: list[Any] = world.gather(own)
        if self._rows is None:
            return
        if trained := [part for part in parts if part is not None]:
            self._rows.add(_TrainedClips.joined(trained))
        self._rows.about = replace(
            self._rows.about, step=step, trained=self.trained, visits=self.visits, last=self.last
        )

    def to_bytes(self, world: World, step: int) -> bytes:
        """Return the account up to a step as a file; only the main rank has more than none. Collective."""
        self.bring_together(world, step)
        return b"" if self._rows is None else self._rows.to_losses().to_bytes()

    @property
    def of_all(self) -> _AccountRows:
        """The account of all ranks, which the main rank has."""
        assert self._rows is not None
        return self._rows


@dataclass
class _AccountRows:
    """The account on the main rank, with a row for each clip of the dataset and those of the account that left it."""

    table: ClipLosses
    about: LossesAbout
    buckets: list[str]
    usual: _UsualLoss
    _own: I64  # index into `buckets` of each bucket of the table of buckets
    _uid: NDArray[np.uint64]  # of the dataset's clips, ascending
    _row: I64  # of each of them

    @classmethod
    def lay_out(cls, data: RecipeData, position: DataPosition, stored: ClipLosses | None) -> _AccountRows:
        rows, stored = data.rows, ClipLosses.empty() if stored is None else stored
        key, order = position.aliases.keys(rows.ordinal, rows.uid), np.argsort(rows.uid)
        place = np.argsort(key)
        found = blocks.find(key[place], stored.key)
        left = found < 0
        at = np.where(left, len(key) - 1 + np.cumsum(left), place[found])  # behind the others, unless it is one of them
        table = ClipLosses.empty(rows=len(key) + int(left.sum()))
        for name, values in table.columns().items():
            values[at] = stored.columns()[name]
        table.key[: len(key)] = key
        names = [bucket.name for bucket in data.table.buckets]
        buckets = list(dict.fromkeys([*stored.about.buckets, *names]))
        own = np.array([buckets.index(name) for name in names])
        return cls(table, stored.about, buckets, _UsualLoss(stored.about.usual, buckets), own, rows.uid[order], order)

    def of_uids(self, uids: NDArray[np.uint64]) -> I64:
        """Return the rows of clips of the dataset."""
        return np.asarray(self._row[np.searchsorted(self._uid, uids)])

    def to_losses(self) -> ClipLosses:
        about = replace(self.about, buckets=tuple(self.buckets), usual=self.usual.to_usual(self.buckets))
        return replace(self.table, about=about)

    def add(self, clips: _TrainedClips) -> None:
        """Add clips that were trained, step by step and in the order of the plan."""
        clips = clips.take(np.lexsort((clips.place, clips.micro_batch, clips.step)))
        row, bucket = self.of_uids(clips.uid), self._own[clips.bucket]
        ends = (np.flatnonzero(np.diff(clips.step, append=clips.step[-1] + 1)) + 1).tolist()
        steps = [slice(first, end) for first, end in zip([0, *ends[:-1]], ends, strict=True)]
        usual = np.empty(len(row))
        for part in steps:
            usual[part] = self.usual.add(clips.loss[part], clips.time[part], bucket[part])
            self._note_course(int(clips.step[part.start]))
        ratio = np.clip(np.log(clips.loss / usual), -_FAR, _FAR)
        self.table.bucket[row], self.table.held_out[row] = bucket, False
        for part in steps:
            self._add_ratios(int(clips.step[part.start]), row[part], ratio[part])

    def _add_ratios(self, step: int, row: I64, ratio: F64) -> None:
        # A clip may be shown several times in a step, which counts as its mean.
        row, place, times = np.unique(row, return_inverse=True, return_counts=True)
        value, table = np.bincount(place, ratio) / times, self.table
        shown = table.shown[row] + times.astype(np.int32)
        begins = shown - times < _FIRST
        table.shown[row], share = shown, times / shown
        if begins.any():
            _approach(table.first, row[begins], value[begins], share[begins])
            table.settled[row[begins]] = step
        for column, reach in ((table.longer, _LONGER), (table.recent, _RECENT)):
            _approach(column, row, value, np.maximum(share, 1 / reach))

    def _note_course(self, step: int) -> None:
        course = self.about.course
        stride = course[1][0] - course[0][0] if len(course) > 1 else 1
        if course and step < course[-1][0] + stride:
            return
        course = (*course, (step, tuple(np.where(self.usual.weight >= _FEWEST, self.usual.mean, 0.0).tolist())))
        self.about = replace(self.about, course=course[::2] if len(course) > _MOST_POINTS else course)

    def note_measured(self, found: Measured) -> None:
        """Add what all ranks measured; of a clip that could not be read, and never was, the number is `UNREADABLE`."""
        row, bucket, time, table = self.of_uids(found.uid), self._own[found.bucket], found.time, self.table
        captioned, uncaptioned = found.captioned, found.uncaptioned
        good = np.isfinite(captioned) & np.isfinite(uncaptioned) & (captioned > 0) & (uncaptioned > 0)
        table.measured[row[~good & (table.measured[row] == 0)]] = UNREADABLE
        usual = self.usual.at(time, bucket)
        good &= np.isfinite(usual)
        level = np.log(captioned[good] / usual[good])
        gain = np.log(uncaptioned[good] / captioned[good])
        by_heart = np.log(found.base[good] / uncaptioned[good])
        table.held_out[row] = found.held_out
        row = row[good]
        table.bucket[row] = bucket[good]
        table.measured[row] += 1
        share = 1 / np.minimum(table.measured[row], MEASURED)
        _approach(table.level, row, np.clip(level, -_FAR, _FAR), share)
        _approach(table.gain, row, np.clip(gain, -_FAR, _FAR), share)
        # It grows: clips that are measured again would stand out by their later steps.
        is_first = np.isnan(table.by_heart[row])
        table.by_heart[row[is_first]] = np.clip(by_heart[is_first], -_FAR, _FAR)


def _approach(column: NDArray[np.float32], row: I64, value: F64, share: F64) -> None:
    """Move a share of the way to new values."""
    column[row] += ((value - column[row]) * share).astype(np.float32)
