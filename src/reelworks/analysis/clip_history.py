"""Joins the records of a run's segments to what became of every clip.

Which segments hold, and how far the one under way went, the run's events tell; which clips they had and why others
stayed out, the records tell, as it was written when it happened. Nothing is planned again: where a record is
missing, its segment is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.analysis.coverage import LABELS, Coverage, EpochCoverage, Lost, Named, State
from reelworks.buckets.assign import Reason
from reelworks.data import segment_record
from reelworks.run import history, records
from reelworks.run.folder import RunFolder
from reelworks.run.history import Epoch
from reelworks.run.records import Failure, Outcome, Record, RecordError
from reelworks.schedule.cursor import Aliases

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
_STATES = {**{r.label: int(r) for r in Reason}, **{s.label: int(s) for s in State}}


def cover(run: RunFolder) -> Coverage:
    """Read what became of every clip of a run so far.

    Raises:
        UserError: There is no run.
    """
    run.info()
    return _cover(run, history.epochs(run))


def totals(run: RunFolder, generation: int, epoch: int) -> dict[str, Any]:
    """Totals of one epoch, to be kept where its records go."""
    begun = [e for e in history.epochs(run) if (e.generation, e.epoch) == (generation, epoch)]
    found = [{k: v for k, v in e.to_json().items() if k != "pruned"} for e in _cover(run, begun).epochs]
    return found[0] if found else {"planned": 0, "counts": {}, "done": False}


def _cover(run: RunFolder, begun: list[Epoch]) -> Coverage:
    catalogs = _Catalogs(run)
    pruned = records.pruned(run)
    segments = [{} if (e.generation, e.epoch) in pruned else _segments(run, e, catalogs) for e in begun]
    clips = _Clips.number(
        catalogs.named, [s for found in segments for s in found.values() if isinstance(s, _Segment)]
    )
    epochs = []
    for epoch, found in zip(begun, segments, strict=True):
        totals = pruned.get((epoch.generation, epoch.epoch))
        account = _Account(epoch, clips, catalogs.named)
        epochs.append(_pruned(epoch, clips, totals) if totals else account.build(found))
    return Coverage(clips.key, clips.copy, epochs, catalogs.named, clips.catalog, clips.ordinal)


def _pruned(epoch: Epoch, clips: _Clips, kept: dict[str, Any]) -> EpochCoverage:
    unknown = np.full(len(clips), State.NOT_AVAILABLE, dtype=np.int8)
    return EpochCoverage(
        epoch.generation,
        epoch.epoch,
        kept["planned"],
        kept["counts"],
        kept["done"],
        [],
        [],
        unknown,
        np.zeros(len(clips), dtype=np.int32),
        pruned=kept["time"],
    )


@dataclass(frozen=True)
class _Segment:
    """A segment's record.

    Attributes:
        record: The record.
        catalog: Index of its catalog.
        outcome: How it ended, or how far it went.
    """

    record: Record
    catalog: int
    outcome: Outcome


def _segments(run: RunFolder, epoch: Epoch, catalogs: _Catalogs) -> dict[int, _Segment | Lost]:
    """Read the records of an epoch's segments that trained something or are under way."""
    found: dict[int, _Segment | Lost] = {}
    for number in sorted(epoch.plans):
        key = epoch.generation, epoch.epoch, number
        try:
            record = records.read(run, key, epoch.plans[number])
            catalog = catalogs.number_of(record)
            outcome = _outcome(run, epoch, record)
        except RecordError as missing:
            steps = epoch.steps.get(number, [])
            failed = sum(len(epoch.failures.get(s.step, [])) for s in steps)
            trained = sum(s.clips for s in steps if s.applied)
            found[number] = Lost(number, str(missing), len(steps), trained, failed)
            continue
        found[number] = _Segment(record, catalog, outcome)
    return found


def _outcome(run: RunFolder, epoch: Epoch, record: Record) -> Outcome:
    """How a segment ended, as it was recorded; how far it went by the events, if it is under way or was killed."""
    key = record.about.key
    recorded_outcome = records.read_outcome(run, key)
    if recorded_outcome is not None:
        return recorded_outcome
    steps = epoch.steps.get(key[2], [])
    return epoch.outcome(key[2], max((step.row + 1 for step in steps), default=0))


@dataclass
class _Catalogs:
    """The kept catalogs of a run, opened once each."""

    run: RunFolder
    named: list[Named] = field(default_factory=list)
    _number: dict[str, int] = field(default_factory=dict)

    def number_of(self, record: Record) -> int:
        """Index of a record's catalog.

        Raises:
            RecordError: It is gone or damaged.
        """
        name = record.about.catalog
        at = self._number.get(name)
        known = None if at is None else self.named[at]
        if known is None or known.catalog.version < record.about.catalog_version:
            catalog = segment_record.recorded_catalog(self.run, record.about)
            aliases = Aliases() if known is None else known.aliases
            known = Named(catalog, aliases, catalog.columns("uid").column("uid").to_numpy())
        if len(record.alias_ordinal):
            known = replace(known, aliases=known.aliases.with_more(record.alias_ordinal, record.alias_key))
        if at is None:
            at = self._number[name] = len(self.named)
            self.named.append(known)
        self.named[at] = known
        return at


@dataclass(frozen=True)
class _Clips:
    """Every clip and copy of a run: copies of a clip stand side by side.

    Attributes:
        key, copy: Its identity.
        catalog, ordinal: The catalog that has it last, and its row there.
    """

    key: U64
    copy: I64
    catalog: NDArray[np.int8]
    ordinal: I64
    _clip_of: list[I64]
    _first: I64

    def __len__(self) -> int:
        return len(self.key)

    @classmethod
    def number(cls, named: list[Named], segments: list[_Segment]) -> _Clips:
        """Number the clips of catalogs; rows with one key are one clip."""
        key = np.zeros(0, np.uint64)
        catalog, ordinal = np.zeros(0, np.int8), np.zeros(0, np.int64)
        clip_of = []
        for i, one in enumerate(named):
            mine = np.zeros(len(one.uids), dtype=np.int64)
            row = 0
            for part in one.catalog.parts:
                rows = np.arange(row, row + part.rows)
                keys = one.aliases.keys(rows, one.uids[rows])
                known = _among(key, keys)
                new = np.flatnonzero(known < 0)
                known[new] = np.arange(len(key), len(key) + len(new))
                mine[rows] = known
                key = np.concatenate([key, keys[new]])
                catalog = np.concatenate([catalog, np.zeros(len(new), np.int8)])
                ordinal = np.concatenate([ordinal, np.zeros(len(new), np.int64)])
                catalog[known], ordinal[known] = i, rows
                row += part.rows
            clip_of.append(mine)
        copies = np.ones(len(key), dtype=np.int64)
        for s in segments:
            for copy, rows in (
                (s.record.copy, s.record.ordinal),
                (s.record.other_copy, s.record.other_ordinal),
            ):
                several = np.flatnonzero(copy)
                np.maximum.at(copies, clip_of[s.catalog][rows[several]], copy[several] + 1)
        first = np.cumsum(copies) - copies
        if int(copies.max(initial=1)) == 1:
            return cls(key, np.zeros(len(key), np.int64), catalog, ordinal, clip_of, first)
        clip = np.repeat(np.arange(len(key)), copies)
        return cls(
            key[clip], np.arange(len(clip)) - first[clip], catalog[clip], ordinal[clip], clip_of, first
        )

    def find(self, catalog: int, ordinal: I64, copy: I64) -> I64:
        """Places of rows of a catalog."""
        places: I64 = self._first[self._clip_of[catalog][ordinal]] + copy
        return places


def _among(known: U64, wanted: U64) -> I64:
    """Places of keys among others that are all different, -1 where they are not there.

    Both are sorted, since a search among millions in no order waits for memory at each step.
    """
    found = np.full(len(wanted), -1, dtype=np.int64)
    if len(known) and len(wanted):
        order, ask = np.argsort(known), np.argsort(wanted)
        place = np.minimum(np.searchsorted(known[order], wanted[ask]), len(known) - 1)
        found[ask] = np.where(known[order][place] == wanted[ask], order[place], -1)
    return found


class _Account:
    """The account of one epoch, built from its segments in their order."""

    def __init__(self, epoch: Epoch, clips: _Clips, named: list[Named]) -> None:
        self.epoch, self.clips, self.named = epoch, clips, named
        self.state = np.full(len(clips), State.ABSENT, dtype=np.int8)
        self.step = np.zeros(len(clips), dtype=np.int32)
        self.failures: dict[int, str] = {}
        self.problems: list[str] = []
        self.planned = 0

    def build(self, found: dict[int, _Segment | Lost]) -> EpochCoverage:
        """Account for an epoch."""
        lost = [segment for segment in found.values() if isinstance(segment, Lost)]
        for number, segment in found.items():
            if isinstance(segment, Lost):
                # What it planned and left out is unknown; a later record tells anew what it knows of them.
                self.state[(self.step == 0) & (self.state != State.ABSENT)] = State.NOT_AVAILABLE
            else:
                self._add(number, segment, is_whole=not any(one.segment < number for one in lost))
        ended = self._ended(found)
        numbers = np.bincount(self.state)[: State.ABSENT].tolist()
        counts = {LABELS[state]: number for state, number in enumerate(numbers) if number}
        planned = self.planned + counts.get(State.NOT_YET.label, 0)
        if lost:
            planned = self.epoch.planned or planned
        elif self.epoch.planned not in (planned, None):
            self._problem(
                max(found),
                f"the trainer told of {self.epoch.planned} planned clips, its records of {planned}",
            )
        elif self.epoch.ended is not None:
            self._compare_end(max(found), counts, self.epoch.ended)
        return EpochCoverage(
            self.epoch.generation,
            self.epoch.epoch,
            planned,
            counts,
            ended,
            lost,
            self.problems,
            self.state,
            self.step,
            self.failures,
        )

    def _compare_end(self, segment: int, counts: dict[str, int], ended: dict[str, Any]) -> None:
        """Hold the account that the trainer gave of the epoch against the records."""
        for state in (State.TRAINED, State.FAILED, State.SKIPPED):
            by_record = counts.get(state.label, 0)
            if by_record != ended[state.label]:
                self._problem(
                    segment,
                    f"the trainer counted {ended[state.label]} clips {state.label}, its records {by_record}",
                )

    def _ended(self, found: dict[int, _Segment | Lost]) -> bool:
        last = found.get(self.epoch.segment)
        if isinstance(last, _Segment):
            return last.outcome.rows >= last.record.about.rows
        return self.epoch.ended is not None

    def _problem(self, segment: int, what: str) -> None:
        generation = f" of generation {self.epoch.generation}" if self.epoch.generation else ""
        self.problems.append(f"epoch {self.epoch.epoch}{generation}, segment {segment}: {what}")

    def _add(self, number: int, segment: _Segment, *, is_whole: bool) -> None:
        """Go on with a segment: who left, why others stay out, and what its steps took."""
        record, open_ = segment.record, self.step == 0
        first = record.first
        at = self.clips.find(segment.catalog, record.ordinal[first], record.copy[first])
        others = self.clips.find(segment.catalog, record.other_ordinal, record.other_copy)
        alive = np.zeros(len(self.clips), dtype=np.bool_)
        alive[at] = alive[others] = True
        self._leave(np.flatnonzero(open_ & ~alive & (self.state != State.ABSENT)), segment, alive)
        codes = np.array([_STATES.get(label, State.NOT_AVAILABLE) for label in record.labels], dtype=np.int8)
        free = open_[others]
        self.state[others[free]] = codes[record.other_reason[free]]
        if is_whole and (unknown := int((record.consumed & free).sum())):
            self._problem(
                number, f"{unknown} clips are said to be done earlier in the epoch, and no record tells how"
            )
        if twice := len(at) - int(open_[at].sum()):
            self._problem(number, f"{twice} clips are planned that a step of the epoch had taken before")
        alive[others] = False
        if again := len(at) - int(alive.sum()):
            self._problem(number, f"{again} clips are planned twice")
        self.state[at] = np.where(open_[at], State.NOT_YET, self.state[at])
        self._take(number, segment, at, record.row_of_place()[first])

    def _leave(self, gone: I64, segment: _Segment, alive: NDArray[np.bool_]) -> None:
        """Say why clips that are not done are not there any more."""
        if not len(gone):
            return
        same_clip = _among(self.clips.key[alive], self.clips.key[gone]) >= 0
        self.state[gone] = np.where(same_clip, State.FEWER_REPEATS, State.REMOVED)
        left, datasets = gone[~same_clip], segment.record.about.datasets
        for i, named in enumerate(self.named):
            mine = left[self.clips.catalog[left] == i]
            other = [name not in datasets for name in named.datasets(self.clips.ordinal[mine])]
            self.state[mine[np.array(other, dtype=np.bool_)]] = State.DATASET_REMOVED

    def _take(self, number: int, segment: _Segment, at: I64, row: I64) -> None:
        """Tell what the rows that are done made of their clips."""
        about, outcome = segment.record.about, segment.outcome
        done = row < outcome.rows
        skipped = np.isin(row[done], np.array(outcome.skipped, dtype=np.int64))
        self.state[at[done]] = np.where(skipped, State.SKIPPED, State.TRAINED)
        self.step[at[done]] = about.first_step + row[done] + 1
        for failure in outcome.failures:
            self._fail(number, segment, at, row, failure)
        self.planned += int(done.sum())
        self._compare_steps(number, segment, row[done])

    def _fail(self, number: int, segment: _Segment, at: I64, row: I64, failure: Failure) -> None:
        """Name the clip of a failure; a step has few clips, in which it is found by uid and copy."""
        record, first = segment.record, segment.record.first
        where = slice(*np.searchsorted(row, [failure.row, failure.row + 1]))
        uid = self.named[segment.catalog].uids[record.ordinal[first][where]]
        found = np.flatnonzero((uid == failure.uid) & (record.copy[first][where] == failure.copy_index))
        if len(found) != 1:
            self._problem(
                number, f"the clip {failure.uid} failed in row {failure.row}, which does not have it"
            )
            return
        place = int(at[where][found[0]])
        self.state[place] = State.FAILED
        self.failures[place] = failure.reason

    def _compare_steps(self, number: int, segment: _Segment, row: I64) -> None:
        """Hold what the trainer counted in each step against the record."""
        about, outcome = segment.record.about, segment.outcome
        expected = np.bincount(row, minlength=about.rows)
        np.subtract.at(expected, np.array([f.row for f in outcome.failures], dtype=np.int64), 1)
        for step in self.epoch.steps.get(number, []):
            if step.row >= outcome.rows or step.step != about.first_step + step.row + 1:
                self._problem(
                    number, f"step {step.step} trained row {step.row}, which its record does not have there"
                )
            elif step.applied and step.clips != expected[step.row]:
                counted = int(expected[step.row])
                self._problem(number, f"step {step.step} trained {step.clips} clips, by its record {counted}")
