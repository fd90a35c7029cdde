"""The state of every clip in every epoch of a run, as `clip_history.cover` reads it from the records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core import results
from reelworks.core.arrays import I64
from reelworks.core.errors import UserError
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.query import filter_failures
from reelworks.data.catalog.store import rows
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.schedule.cursor import Aliases


class State(IntEnum):
    """State of a clip in an epoch; the numbers continue those of `Reason`."""

    NOT_YET = 32
    TRAINED = 33
    FAILED = 34
    SKIPPED = 35
    REMOVED = 36
    DATASET_REMOVED = 37
    FEWER_REPEATS = 38
    NOT_AVAILABLE = 39
    ABSENT = 40

    @property
    def label(self) -> str:
        """Name of the state in reports."""
        return self.name.lower()


LABELS = {int(s): s.label for s in (*Reason, *State)}
_CONSUMED = (State.TRAINED, State.FAILED, State.SKIPPED)


@dataclass(frozen=True)
class Lost:
    """A segment without a readable record, and the numbers of steps and clips that the events still prove."""

    segment: int
    why: str
    steps: int
    trained: int
    failed: int

    def __str__(self) -> str:
        return (
            f"segment {self.segment} has no record ({self.why}); according to the events it had {self.steps} steps, "
            f"with {self.trained} clips trained and {self.failed} failed"
        )


@dataclass(frozen=True)
class ClipEpoch:
    """State of a clip in an epoch, with the step that consumed it and details of why it was not trained, if there are such."""

    data_restarts: int
    epoch: int
    became: str
    step: int | None = field(metadata=results.OPTIONAL)
    reason: str | None = field(metadata=results.OPTIONAL)
    stage: str | None = field(default=None, metadata=results.OPTIONAL)


@dataclass(frozen=True)
class EpochCoverage:
    """One epoch, for the clips of a `Coverage`.

    Attributes:
        planned: Clips planned by all segments together.
        done: True once all its steps are done.
        lost: Segments without a record, whose clips may be unknown.
        problems: Contradictions in the records and events, each with the segment's name.
        state: `State` or `Reason` of each clip.
        step: Step that consumed each clip, 0 if none did.
        failures: Why a clip failed, by its index.
        notes: What the segments recorded about the reasons of clips.
        pruned: When the records were removed to free disk space, in seconds since 1970, or None.
        stage: Name of the recipe's stage; empty without stages.
    """

    JSON_KEYS: ClassVar = (
        *("data_restarts", "epoch", "planned", "counts", "done", "available", "adds_up"),
        *("lost", "problems", "pruned", "stage"),
    )

    data_restarts: int
    epoch: int
    planned: int
    counts: dict[str, int]
    done: bool
    lost: list[Lost]
    problems: list[str]
    state: NDArray[np.int8]
    step: NDArray[np.int32]
    failures: dict[int, str] = field(default_factory=dict)
    notes: list[Notes] = field(default_factory=list)
    pruned: float | None = None
    stage: str = ""

    def number(self, state: State) -> int:
        """Return the number of clips in a state."""
        return self.counts.get(state.label, 0)

    @property
    def available(self) -> bool:
        """False if a record is lost or was removed, so that not every clip is accounted for."""
        return not self.lost and self.pruned is None

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Whether no record tells what became of a clip, for each."""
        return np.isin(self.state, [State.NOT_AVAILABLE, *([] if self.available else [State.ABSENT])])

    @property
    def adds_up(self) -> bool:
        """True if planned = trained + failed + skipped + not yet, and there is no contradiction."""
        parts = sum(self.number(state) for state in (*_CONSUMED, State.NOT_YET))
        return self.available and not self.problems and self.planned == parts

    def of_clips(self, places: I64) -> EpochCoverage:
        """Return the epoch for some of the clips, by ascending places."""
        number = {place: i for i, place in enumerate(places.tolist())} if self.failures else {}
        failures = {number[place]: why for place, why in self.failures.items() if place in number}
        notes = [some for notes in self.notes if len((some := notes.of_clips(places)).place)]
        return replace(self, state=self.state[places], step=self.step[places], failures=failures, notes=notes)

    def clip(self, place: int, detail: str | None = None) -> ClipEpoch:
        """Return the state of one clip; `detail` is of `details`."""
        label, step = LABELS[int(self.state[place])], int(self.step[place])
        reason = self.failures.get(place, detail)
        return ClipEpoch(self.data_restarts, self.epoch, label, step or None, reason, self.stage or None)

    def details(self, places: list[int], named: list[NamedCatalog]) -> dict[int, str]:
        """Return details of the reasons of those of some clips that have any."""
        found: dict[int, str] = {}
        for notes in self.notes:
            found |= notes.details(np.array(places, dtype=np.int64), self.state, named)
        return found


@dataclass(frozen=True)
class Notes:
    """Notes of a segment's record about clips, by ascending places.

    Attributes:
        catalog: Index of the catalog of the rows.
        ordinal: Row of each clip.
        stand: Of duplicates, the row of the clip that stands for each.
    """

    place: I64
    reason: NDArray[np.int8]
    catalog: int
    ordinal: I64
    stand: NDArray[np.int32]
    note: Any

    def of_clips(self, places: I64) -> Notes:
        """Return the notes about some of the clips, by ascending places."""
        at = np.flatnonzero(np.isin(self.place, places))
        place, note = np.searchsorted(places, self.place[at]), self.note.take(pa.array(at))
        return Notes(place, self.reason[at], self.catalog, self.ordinal[at], self.stand[at], note)

    def details(self, places: I64, state: NDArray[np.int8], named: list[NamedCatalog]) -> dict[int, str]:
        """Return what the notes say, for people, of those of some clips that still have the same reason."""
        at = np.flatnonzero(np.isin(self.place, places))
        at = at[state[self.place[at]] == self.reason[at]]
        note = self.note.take(pa.array(at))
        texts = np.array(note.to_pylist(), dtype=object)
        filtered = np.flatnonzero(self.reason[at] == Reason.FILTERED)
        if len(filtered):
            rows_of = named[self.catalog].catalog.rows_at(self.ordinal[at[filtered]])
            parts = note.take(pa.array(filtered)).cast(pa.string()).dictionary_encode()
            texts[filtered] = filter_failures.details_by_part(rows_of, parts)
        for kind in (kind for kind in Reason if kind.is_duplicate):
            same = np.flatnonzero(self.reason[at] == kind)
            texts[same] = [f"{path} stands for it" for path in named[self.catalog].paths(self.stand[at[same]])]
        return dict(zip(self.place[at].tolist(), texts.tolist(), strict=True))


@dataclass(frozen=True)
class NamedCatalog:
    """A run's copy of a catalog, which gives clips their paths.

    Attributes:
        catalog: The catalog, at the newest version that a record refers to.
        uids: Uids of all rows, indexed by ordinal.
    """

    catalog: Catalog
    aliases: Aliases
    uids: NDArray[np.uint64]

    def paths(self, ordinal: I64) -> list[str]:
        """Return "dataset/path" of rows, with the frames of ranges."""
        return rows.labels(self.catalog.columns(*rows.LABEL_COLUMNS).take(pa.array(ordinal)))

    def datasets(self, ordinal: I64) -> list[str]:
        """Return the datasets of rows."""
        return list(self.catalog.columns("dataset").column("dataset").take(pa.array(ordinal)).to_pylist())

    def keys_named(self, clip: str) -> NDArray[np.uint64]:
        """Return the keys of the clips that have, or once had, a path that matches a user's text."""
        ends = (pc.ends_with(self.catalog.columns("path").column("path"), Path(end).name) for end in _readings(clip))
        likely = np.flatnonzero(pc.or_(*ends).to_numpy())
        labels = zip(likely.tolist(), self.paths(likely), strict=True)
        named = [o for o, path in labels if any(_matches(one, clip) for one in _readings(path))]
        ordinal = np.array(named, dtype=np.int64)
        return self.aliases.keys(ordinal, self.uids[ordinal])


def named_clips(key: NDArray[np.uint64], named: list[NamedCatalog], clip: str | None) -> NDArray[np.bool_]:
    """Return which keys are those of clips that a user's text names; without a text, all."""
    if clip is None:
        return np.ones(len(key), dtype=np.bool_)
    return np.isin(key, np.concatenate([np.zeros(0, np.uint64), *(one.keys_named(clip) for one in named)]))


def _readings(label: str) -> tuple[str, str]:
    """Return the clip and the file that a text may name."""
    return label, rows.without_range(label)


@dataclass(frozen=True)
class ClipCoverage:
    """States of a clip or repeat in the epochs in which it was not absent."""

    path: str
    uid: int
    copy: int
    epochs: list[ClipEpoch]


@dataclass(frozen=True)
class CoverageReport:
    """Counts of all clips by epoch, and the states of some clips."""

    epochs: list[EpochCoverage]
    clips: list[ClipCoverage]


@dataclass(frozen=True)
class Coverage:
    """Clips and repeats of a run, with their state in every epoch.

    Attributes:
        uid: Key of each clip: the uid that it had when the run first used it.
        named: Catalogs that give the clips their paths.
        catalog, ordinal: The catalog that has each clip in its latest state, as an index into `named`, and its row.
    """

    uid: NDArray[np.uint64]
    copy: I64
    epochs: list[EpochCoverage]
    named: list[NamedCatalog]
    catalog: NDArray[np.int32]
    ordinal: I64

    @property
    def problems(self) -> list[str]:
        """Contradictions in the records and events of all epochs."""
        return [problem for epoch in self.epochs for problem in epoch.problems]

    def paths(self, places: list[int]) -> list[str]:
        """Return the latest "dataset/path" of clips."""
        at = np.array(places, dtype=np.int64)
        paths = np.empty(len(at), dtype=object)
        for i, named in enumerate(self.named):
            mine = np.flatnonzero(self.catalog[at] == i)
            if len(mine):
                paths[mine] = named.paths(self.ordinal[at[mine]])
        return list(paths)

    def places(self, *, never_trained: bool = False, clip: str | None = None) -> list[int]:
        """Return the indices of clips, ordered by path.

        A `clip` is a path, with or without the dataset, or a file on disk; without one, all clips are returned.
        """
        # The catalog may have rows of datasets that no segment used.
        chosen = np.zeros(len(self.uid), dtype=np.bool_)
        for epoch in self.epochs:
            chosen |= epoch.state != State.ABSENT
        for epoch in self.epochs if never_trained else ():
            chosen &= (epoch.state != State.TRAINED) & ~epoch.unknown
        if clip is not None:
            matches = named_clips(self.uid, self.named, clip)
            if not matches.any():
                raise UserError(
                    "the run has no clip with this path",
                    code="unknown-clip",
                    field="--clip",
                    value=clip,
                    remedy="use the path below the dataset's folder; `reelworks coverage RUN --json` lists all clips",
                )
            chosen &= matches
        places = np.flatnonzero(chosen).tolist()
        return [i for _, _, i in sorted(zip(self.paths(places), self.copy[places].tolist(), places, strict=True))]

    def maybe_trained(self) -> int:
        """Return the number of clips that no epoch on record trained, but one without a record may have."""
        trained = np.any([epoch.state == State.TRAINED for epoch in self.epochs], axis=0)
        return int((np.any([epoch.unknown for epoch in self.epochs], axis=0) & ~trained).sum())

    def report(self, places: list[int]) -> CoverageReport:
        """Return the counts of all clips by epoch, and the states of the clips at `places`."""
        details = [e.details(places, self.named) for e in self.epochs]
        states = (
            [
                e.clip(i, of_epoch.get(i))
                for e, of_epoch in zip(self.epochs, details, strict=True)
                if e.state[i] != State.ABSENT
            ]
            for i in places
        )
        keys = (column[places].tolist() for column in (self.uid, self.copy))
        return CoverageReport(self.epochs, list(map(ClipCoverage, self.paths(places), *keys, states)))


def _matches(path: str, text: str) -> bool:
    """Return whether a user's text names a path, by its last parts or as a file on disk."""
    typed = Path(text).as_posix()
    below = path.partition("/")[2]
    return f"/{path}".endswith(f"/{typed}") or (Path(typed).is_absolute() and typed.endswith(f"/{below}"))
