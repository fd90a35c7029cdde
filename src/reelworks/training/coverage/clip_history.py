"""Join the records of a run's segments to the state of every clip in every epoch.

The run's events tell which segments are valid and how far the current one went; the records, written when it
happened, list the clips of each segment and why others were left out. Nothing is planned again: a segment whose
record is missing is reported as lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelworks.core import blocks, results, units
from reelworks.core.arrays import I64, U64, Mask
from reelworks.data.buckets.assign import Reason
from reelworks.data.loader import segment_record
from reelworks.data.run import history, records
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.history import Epoch
from reelworks.data.run.records import About, Outcome, Record, RecordError
from reelworks.data.schedule.cursor import Aliases
from reelworks.training.coverage.coverage import (
    LABELS,
    Coverage,
    EpochCoverage,
    Lost,
    NamedCatalog,
    Notes,
    State,
    named_clips,
)

# Clips of records that are read once; those of others are held for one epoch at a time, and read twice.
_FEW_CLIPS = 5_000_000
_STATES = {**{r.label: int(r) for r in Reason}, **{s.label: int(s) for s in State}}


def cover(run: RunFolder, clip: str | None = None) -> Coverage:
    """Return the state of every clip of a run in every epoch so far, or of those alone that `Coverage.places` finds."""
    run.info()
    return _cover(run, history.epochs(run), lambda key, named: named_clips(key, named, clip))


def counts(run: RunFolder) -> Coverage:
    """Return the account of every epoch so far without the states of clips."""
    run.info()
    return _cover(run, history.epochs(run), _none)


def totals(run: RunFolder, data_restarts: int, epoch: int) -> dict[str, Any]:
    """Return the totals of one epoch, to store when its records are removed."""
    for coverage in _cover(run, history.epochs(run, (data_restarts, epoch)), _none).epochs:
        return {k: v for k, v in results.as_json(coverage).items() if k != "pruned"}
    return {"planned": 0, "counts": {}, "done": False}


def _none(key: U64, named: list[NamedCatalog]) -> Mask:
    return np.zeros(len(key), dtype=np.bool_)


def _cover(run: RunFolder, begun: list[Epoch], choose: Callable[[U64, list[NamedCatalog]], Mask]) -> Coverage:
    """Account for every clip, and keep the states of those that are chosen by their keys."""
    catalogs, pruned = _Catalogs(run), records.pruned(run)
    segments = [
        {} if (e.data_restarts, e.epoch) in pruned else _segments(run, e, catalogs, hold=e is begun[-1]) for e in begun
    ]
    clips = _Clips.number(catalogs.rows)
    chosen = np.flatnonzero(choose(clips.key, catalogs.named))
    epochs = []
    for epoch, by_number in zip(begun, segments, strict=True):
        totals = pruned.get((epoch.data_restarts, epoch.epoch))
        if totals is None:
            whole = _Account(epoch, clips, catalogs.named).build(_read_again(run, epoch, by_number))
        else:
            whole = _pruned(epoch, clips, totals)
        epochs.append(whole.of_clips(chosen))
    latest = clips.catalog[chosen], clips.ordinal[chosen]
    return Coverage(clips.key[chosen], clips.copy[chosen], epochs, catalogs.named, *latest)


def _pruned(epoch: Epoch, clips: _Clips, totals: dict[str, Any]) -> EpochCoverage:
    unknown = np.full(len(clips), State.NOT_AVAILABLE, dtype=np.int8)
    no_step = np.zeros(len(clips), dtype=np.int32)
    planned, counts, done, time = (totals[key] for key in ("planned", "counts", "done", "time"))
    key = epoch.data_restarts, epoch.epoch
    return EpochCoverage(*key, planned, counts, done, [], [], unknown, no_step, pruned=time, stage=epoch.stage)


@dataclass(frozen=True)
class _Segment:
    """The metadata of a segment's record, the index of its catalog, how far the segment went, and the record while it is held."""

    about: About
    catalog: int
    outcome: Outcome
    record: Record | None = None


def _segments(run: RunFolder, epoch: Epoch, catalogs: _Catalogs, *, hold: bool) -> dict[int, _Segment | Lost]:
    """Find the records of an epoch's segments that trained something or are under way."""
    segments: dict[int, _Segment | Lost] = {}
    for number in sorted(epoch.plans):
        key = epoch.data_restarts, epoch.epoch, number
        try:
            record = records.read(run, key, epoch.plans[number])
            catalog = catalogs.number_of(record)
            # A segment that is under way or was killed has the outcome that the events tell.
            num_steps = max((step.plan_step + 1 for step in epoch.steps.get(number, [])), default=0)
            outcome = records.read_outcome(run, record.about.key) or epoch.outcome(number, num_steps)
        except RecordError as missing:
            segments[number] = _lost(epoch, number, missing)
        else:
            catalogs.clips += record.about.planned
            is_held = hold or catalogs.clips <= _FEW_CLIPS
            segments[number] = _Segment(record.about, catalog, outcome, record if is_held else None)
            catalogs.rows[catalog].take_in(record, next(catalogs.count))
    return segments


def _read_again(run: RunFolder, epoch: Epoch, segments: dict[int, _Segment | Lost]) -> dict[int, _Segment | Lost]:
    """Return segments with their records, which training may have replaced or removed meanwhile."""
    held = dict(segments)
    for number, segment in segments.items():
        if isinstance(segment, _Segment) and segment.record is None:
            try:
                record = records.read(run, segment.about.key)
                if record.about != segment.about:
                    raise RecordError("it was written anew meanwhile")
                held[number] = replace(segment, record=record)
            except RecordError as missing:
                held[number] = _lost(epoch, number, missing)
    return held


def _lost(epoch: Epoch, number: int, why: RecordError) -> Lost:
    steps = epoch.steps.get(number, [])
    failed = sum(len(epoch.first_failures(s.step)) for s in steps)
    return Lost(number, str(why), len(steps), sum(s.clips for s in steps if s.applied), failed)


class _SeenRows:
    """A copy of a catalog, and of each row the number of its copies, and the number of the last record that has it, or -1."""

    def __init__(self, named: NamedCatalog, former: _SeenRows | None = None) -> None:
        self.named = named
        self.copies = np.ones(len(named.uids), np.int32)
        self.latest = np.full(len(named.uids), -1, np.int32)
        if former is not None:  # of an earlier version
            self.copies[: len(former.copies)], self.latest[: len(former.latest)] = former.copies, former.latest

    def take_in(self, record: Record, number: int) -> None:
        """Note what a record tells of its rows."""
        for copy, rows in ((record.copy, record.ordinal), (record.other_copy, record.other_ordinal)):
            self.latest[rows] = number
            several = np.flatnonzero(copy)
            np.maximum.at(self.copies, rows[several], copy[several].astype(np.int32) + 1)


@dataclass
class _Catalogs:
    """A run's copies of catalogs, opened once each, with what the records tell of their rows."""

    run: RunFolder
    count: Iterator[int] = field(default_factory=itertools.count)  # of records
    clips: int = 0  # of all records
    _by_name: dict[str, _SeenRows] = field(default_factory=dict)

    @property
    def rows(self) -> list[_SeenRows]:
        return list(self._by_name.values())

    @property
    def named(self) -> list[NamedCatalog]:
        return [rows.named for rows in self.rows]

    def number_of(self, record: Record) -> int:
        """Return the index of a record's catalog."""
        about = record.about
        known = self._by_name.get(about.catalog)
        aliases = known.named.aliases if known else Aliases()
        if known is None or known.named.catalog.version < about.catalog_version:
            catalog = segment_record.recorded_catalog(self.run, about)
            known = _SeenRows(NamedCatalog(catalog, aliases, catalog.uids()), known)
        if len(record.alias_ordinal):
            aliases = aliases.with_more(record.alias_ordinal, record.alias_key)
            known.named = replace(known.named, aliases=aliases)
        self._by_name[about.catalog] = known
        return list(self._by_name).index(about.catalog)


@dataclass(frozen=True)
class _Clips:
    """Clips and repeats of a run, with catalog and row in the latest segment; repeats of a clip are adjacent."""

    key: U64
    copy: I64
    catalog: NDArray[np.int32]
    ordinal: I64
    _clip_of: list[I64]
    _first: I64

    def __len__(self) -> int:
        return len(self.key)

    @classmethod
    def number(cls, catalogs: list[_SeenRows]) -> _Clips:
        """Number the clips of catalogs; rows with the same key are one clip."""
        key = np.zeros(0, np.uint64)
        catalog, ordinal = np.zeros(0, np.int32), np.zeros(0, np.int64)
        clip_of = []
        for i, catalog_i in enumerate(catalogs):
            rows = np.arange(len(catalog_i.named.uids))
            keys = catalog_i.named.aliases.keys(rows, catalog_i.named.uids)
            mine = _among(key, keys)
            new = np.flatnonzero(mine < 0)
            _, first, same = np.unique(keys[new], return_index=True, return_inverse=True)
            is_first = blocks.mask(first, len(new))
            mine[new] = len(key) + (np.cumsum(is_first) - 1)[first[same]]
            key = np.concatenate([key, keys[new[is_first]]])
            catalog, ordinal = np.resize(catalog, len(key)), np.resize(ordinal, len(key))
            catalog[mine], ordinal[mine] = i, rows  # of several rows of a clip, the last
            clip_of.append(mine)
        copies, latest = np.ones(len(key), dtype=np.int64), np.full(len(key), -1, dtype=np.int32)
        for rows_of, clips in zip(catalogs, clip_of, strict=True):
            np.maximum.at(copies, clips, rows_of.copies)
            np.maximum.at(latest, clips, rows_of.latest)
        for i, (rows_of, clips) in enumerate(zip(catalogs, clip_of, strict=True)):
            # An abandoned start may have scanned a later row, and whose clip that was only its record told.
            rows = np.flatnonzero((rows_of.latest >= 0) & (rows_of.latest == latest[clips]))
            catalog[clips[rows]], ordinal[clips[rows]] = i, rows
        first = np.cumsum(copies) - copies
        if int(copies.max(initial=1)) == 1:
            return cls(key, np.zeros(len(key), np.int64), catalog, ordinal, clip_of, first)
        clip = np.repeat(np.arange(len(key)), copies)
        return cls(key[clip], np.arange(len(clip)) - first[clip], catalog[clip], ordinal[clip], clip_of, first)

    def find(self, catalog: int, ordinal: I64, copy: I64) -> I64:
        """Return the indices of the clips of a catalog's rows."""
        return self._first[self._clip_of[catalog][ordinal]] + copy


def _among(known: U64, wanted: U64) -> I64:
    """Return the indices of keys among others that are all different, -1 for missing ones.

    Both are sorted, since an unordered search among millions waits for memory at each step.
    """
    index = np.full(len(wanted), -1, dtype=np.int64)
    if len(known) and len(wanted):
        order, ask = np.argsort(known), np.argsort(wanted)
        place = np.minimum(np.searchsorted(known[order], wanted[ask]), len(known) - 1)
        index[ask] = np.where(known[order][place] == wanted[ask], order[place], -1)
    return index


class _Account:
    """State of every clip in one epoch, built from its segments in their order."""

    def __init__(self, epoch: Epoch, clips: _Clips, named: list[NamedCatalog]) -> None:
        self.epoch, self.clips, self.named = epoch, clips, named
        self.state = np.full(len(clips), State.ABSENT, dtype=np.int8)
        self.step = np.zeros(len(clips), dtype=np.int32)
        self.failures: dict[int, str] = {}
        self.notes: list[Notes] = []
        self.problems: list[str] = []
        self.planned = 0
        # Catalog and row of each clip in the latest segment so far.
        self.catalog = np.zeros(len(clips), dtype=np.int32)
        self.ordinal = np.zeros(len(clips), dtype=np.int64)

    def build(self, segments: dict[int, _Segment | Lost]) -> EpochCoverage:
        lost = [segment for segment in segments.values() if isinstance(segment, Lost)]
        for number, segment in segments.items():
            if isinstance(segment, Lost):
                # Its clips are unknown until a later record lists them.
                self.state[(self.step == 0) & (self.state != State.ABSENT)] = State.NOT_AVAILABLE
            else:
                self._add(number, segment, none_lost=not any(gap.segment < number for gap in lost))
        now, done = self.epoch, self.epoch.ended is not None
        if isinstance(last := segments.get(now.segment), _Segment):
            done = last.outcome.steps >= last.about.steps
        numbers = np.bincount(self.state)[: State.ABSENT].tolist()
        counts = {LABELS[state]: number for state, number in enumerate(numbers) if number}
        planned = self.planned + counts.get(State.NOT_YET.label, 0)
        if lost:
            planned = now.planned or planned
        elif now.planned not in (planned, None):
            by_events = f"{units.plural(now.planned, 'clip', 'are')} planned according to the events"
            self._problem(max(segments), f"{by_events}, {planned} according to the records")
        elif now.ended is not None:
            self._compare_end(max(segments), counts, now.ended)
        return EpochCoverage(
            now.data_restarts,
            now.epoch,
            planned,
            counts,
            done,
            lost,
            self.problems,
            self.state,
            self.step,
            self.failures,
            self.notes,
            stage=now.stage,
        )

    def _compare_end(self, segment: int, counts: dict[str, int], ended: dict[str, Any]) -> None:
        """Compare the counts that the trainer reported at the epoch's end with the records."""
        for state in (State.TRAINED, State.FAILED, State.SKIPPED):
            by_record = counts.get(state.label, 0)
            if by_record != ended[state.label]:
                by_events = f"{units.plural(ended[state.label], 'clip', 'are')} {state.label} according to the events"
                self._problem(segment, f"{by_events}, {by_record} according to the records")

    def _problem(self, segment: int, what: str) -> None:
        now = self.epoch
        name = history.epoch_name(now.epoch, now.data_restarts, now.stage)
        self.problems.append(f"epoch {name}, segment {segment}: {what}")

    def _add(self, number: int, segment: _Segment, *, none_lost: bool) -> None:
        """Add a segment: clips that left, clips that it leaves out and why, and clips that its steps consumed."""
        record, open_ = segment.record, self.step == 0
        assert record is not None
        first = record.is_first_use
        uses = record.ordinal[first], record.copy[first]
        at = self.clips.find(segment.catalog, *uses)
        others = self.clips.find(segment.catalog, record.other_ordinal, record.other_copy)
        alive = np.zeros(len(self.clips), dtype=np.bool_)
        alive[at] = alive[others] = True
        self._leave(np.flatnonzero(open_ & ~alive & (self.state != State.ABSENT)), segment, alive)
        for clips, ordinal in ((at, uses[0]), (others, record.other_ordinal)):
            self.catalog[clips], self.ordinal[clips] = segment.catalog, ordinal
        codes = np.array([_STATES.get(label, State.NOT_AVAILABLE) for label in record.labels], dtype=np.int8)
        free = open_[others]
        reason = codes[record.other_reason]
        self.state[others[free]] = reason[free]
        self._note(segment.catalog, record, others, reason)
        if none_lost and (unknown := int((record.consumed & free).sum())):
            what = f"{units.plural(unknown, 'clip', 'are')} marked as consumed earlier in the epoch, but no record has them"
            self._problem(number, what)
        if twice := len(at) - int(open_[at].sum()):
            self._problem(
                number,
                f"{units.plural(twice, 'clip', 'are')} planned although a step of the epoch had consumed them before",
            )
        alive[others] = False
        if again := len(at) - int(alive.sum()):
            self._problem(number, f"{units.plural(again, 'clip', 'are')} planned twice")
        self.state[at] = np.where(open_[at], State.NOT_YET, self.state[at])
        self._take(number, segment, at, uses, record.step_of_place()[first])

    def _note(self, catalog: int, record: Record, others: I64, reason: NDArray[np.int8]) -> None:
        """Keep what a record notes about the reasons of clips, as long as they are not consumed."""
        of_duplicates = np.isin(reason, [kind for kind in Reason if kind.is_duplicate])
        noted = np.flatnonzero(record.other_note.is_valid().to_numpy() | of_duplicates)
        noted = noted[np.argsort(others[noted], kind="stable")]
        if len(noted):
            note = record.other_note.combine_chunks().take(pa.array(noted))
            ordinal, stand = record.other_ordinal[noted], record.other_nearest[noted]
            self.notes.append(Notes(others[noted], reason[noted], catalog, ordinal, stand, note))

    def _leave(self, gone: I64, segment: _Segment, alive: NDArray[np.bool_]) -> None:
        """Set why clips that were not consumed have left the epoch."""
        if not len(gone):
            return
        same_clip = _among(self.clips.key[alive], self.clips.key[gone]) >= 0
        self.state[gone] = np.where(same_clip, State.FEWER_REPEATS, State.REMOVED)
        left, datasets = gone[~same_clip], segment.about.datasets
        for i in np.unique(self.catalog[left]):
            mine = left[self.catalog[left] == i]
            other = [name not in datasets for name in self.named[i].datasets(self.ordinal[mine])]
            self.state[mine[np.array(other, dtype=np.bool_)]] = State.DATASET_REMOVED

    def _take(self, number: int, segment: _Segment, at: I64, uses: tuple[I64, I64], plan_step: I64) -> None:
        about, outcome = segment.about, segment.outcome
        done = plan_step < outcome.steps
        skipped = np.isin(plan_step[done], np.array(outcome.skipped, dtype=np.int64))
        self.state[at[done]] = np.where(skipped, State.SKIPPED, State.TRAINED)
        self.step[at[done]] = about.first_step + plan_step[done] + 1
        uids = self.named[segment.catalog].uids
        for failure in outcome.failures:
            # The clip is searched among the few of its step, by uid and copy.
            where = slice(*np.searchsorted(plan_step, [failure.plan_step, failure.plan_step + 1]))
            ordinal, copy = (column[where] for column in uses)
            matches = np.flatnonzero((uids[ordinal] == failure.uid) & (copy == failure.copy_index))
            if len(matches) == 1:
                place = int(at[where][matches[0]])
                self.state[place], self.failures[place] = State.FAILED, failure.reason
            else:
                what = f"clip {failure.uid} failed in plan step {failure.plan_step}, which does not contain it"
                self._problem(number, what)
        self.planned += int(done.sum())
        self._compare_steps(number, segment, plan_step[done])

    def _compare_steps(self, number: int, segment: _Segment, plan_step: I64) -> None:
        about, outcome = segment.about, segment.outcome
        expected = np.bincount(plan_step, minlength=about.steps)
        np.subtract.at(expected, np.array([f.plan_step for f in outcome.failures], dtype=np.int64), 1)
        for step in self.epoch.steps.get(number, []):
            if step.plan_step >= outcome.steps or step.step != about.first_step + step.plan_step + 1:
                what = f"step {step.step} trained plan step {step.plan_step}, which is not its plan step in the record"
                self._problem(number, what)
            elif step.applied and step.clips != expected[step.plan_step]:
                recorded = int(expected[step.plan_step])
                what = f"step {step.step} trained {step.clips} clips, but its record has {recorded} clips"
                self._problem(number, what)
