"""What became of every clip in every epoch of a run: plan files, events and catalog put together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.buckets.assign import Reason
from reelworks.catalog.rows import CatalogRows
from reelworks.core.errors import UserError
from reelworks.prepare.data import RecipeData
from reelworks.prepare.former import FormerData
from reelworks.prepare.segments import Segment, segments
from reelworks.run import coverage as told
from reelworks.run.folder import RunFolder

Json = dict[str, Any]


class State(IntEnum):
    """What became of a clip that no reason keeps out of an epoch; numbers lie beyond `Reason`'s."""

    NOT_YET = 32
    TRAINED = 33
    FAILED = 34
    SKIPPED = 35
    REMOVED = 36
    NOT_PLANNED = 37
    NOT_AVAILABLE = 38

    @property
    def label(self) -> str:
        """The name as reports print it."""
        return self.name.lower()


LABELS = {int(s): s.label for s in (*Reason, *State)}
_CONSUMED = (State.TRAINED, State.FAILED, State.SKIPPED)


@dataclass(frozen=True)
class EpochCoverage:
    """One epoch, for the clips of a `Coverage`.

    Attributes:
        generation: Times that the data were restarted from scratch.
        epoch: From 0.
        planned: Clips planned, all segments together, as training told it.
        counts: Clips by label.
        told: The account that training gave at the epoch's end, or None while it runs.
        told_trained: Clips that its steps counted.
        twice: Clips that were trained more than once.
        available: False where a plan is gone and cannot be made again, so that clips are not accounted for.
        state: Values of `State` or `Reason`.
        step: Step that took the clip, 0 where none did.
        failures: Reason by place.
    """

    generation: int
    epoch: int
    planned: int
    counts: dict[str, int]
    told: Json | None
    told_trained: int
    twice: int
    available: bool
    state: NDArray[np.int8]
    step: NDArray[np.int64]
    failures: dict[int, str]

    def number(self, state: State) -> int:
        """Clips in a state."""
        return self.counts.get(state.label, 0)

    @property
    def adds_up(self) -> bool:
        """True if planned = trained + failed + skipped + not yet, none twice, and training counted the same."""
        parts = {state.label: self.number(state) for state in _CONSUMED}
        same = self.told is None or all(self.told[name] == number for name, number in parts.items())
        same = same and self.told_trained == parts["trained"] and not self.twice
        return self.available and same and self.planned == sum(parts.values()) + self.number(State.NOT_YET)

    def to_json(self) -> Json:
        """Counts and whether they add up; no clip by name."""
        return {
            "generation": self.generation,
            "epoch": self.epoch,
            "planned": self.planned,
            "counts": self.counts,
            "done": self.told is not None,
            "available": self.available,
            "adds_up": self.adds_up,
            "trained_twice": self.twice,
        }

    def became(self, place: int) -> Json:
        """What became of one clip: its state, and step and reason where it has them."""
        value: Json = {"generation": self.generation, "epoch": self.epoch}
        value["became"] = LABELS[int(self.state[place])]
        if self.step[place]:
            value["step"] = int(self.step[place])
        if place in self.failures:
            value["reason"] = self.failures[place]
        return value


@dataclass(frozen=True)
class Coverage:
    """Clips and copies of a run, and what became of them.

    Attributes:
        rows: Live rows of the catalog.
        row: Row of each clip and copy, -1 where the catalog has it no more.
        uid, copy: Its identity.
        former: Paths of those without a row.
        epochs: The epochs so far.
    """

    rows: CatalogRows
    row: NDArray[np.int64]
    uid: NDArray[np.uint64]
    copy: NDArray[np.int64]
    former: dict[int, str]
    epochs: list[EpochCoverage]

    def path(self, place: int) -> str:
        """Dataset and path of a clip."""
        row = int(self.row[place])
        return self.former[place] if row < 0 else _path(self.rows, row)

    def places(self, *, never_trained: bool = False, clip: str | None = None) -> list[int]:
        """Places of the clips asked for, by path.

        Args:
            never_trained: Only those that no epoch trained.
            clip: Only those of this path, with or without the dataset, or of this file on disk.

        Raises:
            UserError: No clip has that path.
        """
        chosen = np.ones(len(self.row), dtype=np.bool_)
        for epoch in self.epochs if never_trained else ():
            chosen &= epoch.state != State.TRAINED
        if clip is not None:
            chosen &= self._named(clip)
        return sorted(np.flatnonzero(chosen).tolist(), key=lambda i: (self.path(i), int(self.copy[i])))

    def _named(self, clip: str) -> NDArray[np.bool_]:
        likely = pc.ends_with(self.rows.path, Path(clip).name).to_numpy(zero_copy_only=False)
        rows = [r for r in np.flatnonzero(likely).tolist() if _matches(_path(self.rows, r), clip)]
        places = [i for i, path in self.former.items() if _matches(path, clip)]
        named = np.isin(self.row, rows)
        named[places] = True
        if not named.any():
            raise UserError(
                "the run has no such clip",
                field="--clip",
                value=clip,
                remedy="give its path below the dataset's folder; `reelworks coverage RUN --json` lists all",
            )
        return named

    def clips(self, places: list[int]) -> Iterator[Json]:
        """One JSON value for each place."""
        for i in places:
            became = [epoch.became(i) for epoch in self.epochs]
            identity = {"path": self.path(i), "uid": int(self.uid[i]), "copy": int(self.copy[i])}
            yield {**identity, "epochs": became}

    def to_json(self, places: list[int]) -> Json:
        """Counts of all clips by epoch, and what became of those at `places`."""
        return {"epochs": [epoch.to_json() for epoch in self.epochs], "clips": list(self.clips(places))}


def _path(rows: CatalogRows, row: int) -> str:
    return f"{rows.dataset[row].as_py()}/{rows.path[row].as_py()}"


def _matches(path: str, asked: str) -> bool:
    """Tell whether a path is what a person typed: a part of it from a folder's name on, or a file on disk."""
    typed = Path(asked).as_posix()
    below = path.partition("/")[2]
    return f"/{path}".endswith(f"/{typed}") or (Path(typed).is_absolute() and typed.endswith(f"/{below}"))


def cover(run: RunFolder) -> Coverage:
    """Work out what became of every clip of a run so far.

    Raises:
        UserError: There is no run, or its recipe or catalog cannot be read.
    """
    run.info()
    data = FormerData(run)
    now = data.now()
    begun = told.epochs(run)
    plans = [segments(data, epoch) for epoch in begun]
    clips, row = now.clips()
    places = _Places(clips.uid, clips.copy.astype(np.int64))
    for then in {epoch.recipes[epoch.segment]: None for epoch in begun}:
        if (looked_at := data.find(then)) is not None:
            clips, _ = looked_at.clips()
            places.add(clips.uid, clips.copy.astype(np.int64))
    for segment in (s for found, _ in plans for s in found):
        places.add(segment.uid, segment.copy)
    row = np.r_[row, np.full(len(places.uid) - len(row), -1, dtype=np.int64)]
    former = _former_paths(now, places, row)
    epochs = [_epoch(data, epoch, *found, places, row) for epoch, found in zip(begun, plans, strict=True)]
    return Coverage(now.rows, row, places.uid, places.copy, former, epochs)


def _former_paths(data: RecipeData, places: _Places, row: NDArray[np.int64]) -> dict[int, str]:
    """Paths of the clips that only plans still name."""
    gone = np.flatnonzero(row < 0)
    if not len(gone):
        return {}
    rows = data.catalog.all_rows()
    where = rows.find(places.uid[gone]).tolist()
    named = [_path(rows, r) if r >= 0 else f"uid {u}" for r, u in zip(where, places.uid[gone], strict=True)]
    return dict(zip(gone.tolist(), named, strict=True))


def _epoch(
    data: FormerData,
    epoch: told.Epoch,
    found: list[Segment],
    whole: bool,
    places: _Places,
    row: NDArray[np.int64],
) -> EpochCoverage:
    """Reasons first, then what the plans and the steps that hold make of the others."""
    then = data.find(epoch.recipes[epoch.segment])
    whole = whole and then is not None
    open_ = State.NOT_PLANNED if whole else State.NOT_AVAILABLE
    state = np.where(row < 0, State.REMOVED, open_).astype(np.int8)
    if then is not None:
        clips, _ = then.clips()
        assignment, _ = then.assignment(epoch.epoch)
        at = places.find(clips.uid, clips.copy.astype(np.int64))
        state[at] = np.where(assignment.reason == Reason.NONE, open_, assignment.reason)
    step = np.zeros(len(row), dtype=np.int64)
    times = np.zeros(len(row), dtype=np.int64)
    for segment in found:
        at = places.find(segment.uid, segment.copy)
        taken = segment.step > 0
        step[at[taken]] = segment.step[taken]
        np.add.at(times, at[taken], 1)
        if segment.number == epoch.segment:
            state[at[~taken]] = State.NOT_YET
    done = [s for steps in epoch.steps.values() for s in steps]
    skipped = [s.step for s in done if not s.applied]
    state[step > 0] = np.where(np.isin(step[step > 0], skipped), State.SKIPPED, State.TRAINED)
    failures = _failures(epoch, places.uid, step)
    state[list(failures)] = State.FAILED
    labels, numbers = np.unique(state, return_counts=True)
    counts = {LABELS[label]: number for label, number in zip(labels.tolist(), numbers.tolist(), strict=True)}
    told_trained = sum(s.clips for s in done if s.applied)
    return EpochCoverage(
        generation=epoch.generation,
        epoch=epoch.epoch,
        planned=epoch.planned,
        counts=counts,
        told=epoch.ended,
        told_trained=told_trained,
        twice=int((times > 1).sum()),
        available=whole,
        state=state,
        step=step,
        failures=failures,
    )


def _failures(epoch: told.Epoch, uid: NDArray[np.uint64], step: NDArray[np.int64]) -> dict[int, str]:
    """Reasons by place; where some copies of a clip in a step failed, the first ones."""
    failed = np.array([clip for _, clip in epoch.failures], dtype=np.uint64)
    places: dict[tuple[int, int], list[int]] = {}
    for place in np.flatnonzero(np.isin(uid, failed)).tolist():
        places.setdefault((int(step[place]), int(uid[place])), []).append(place)
    failures: dict[int, str] = {}
    for at, reasons in epoch.failures.items():
        failures |= zip(places.get(at, []), reasons, strict=False)
    return failures


class _Places:
    """(uid, copy) → place, in the order in which they were added."""

    def __init__(self, uid: NDArray[np.uint64], copy: NDArray[np.int64]) -> None:
        self.uid, self.copy = uid, copy

    def add(self, uid: NDArray[np.uint64], copy: NDArray[np.int64]) -> None:
        """Add those that are not there yet."""
        new = self.find(uid, copy) < 0
        pairs = np.unique(np.stack([uid[new], copy[new].astype(np.uint64)], axis=1), axis=0)
        self.uid = np.concatenate([self.uid, pairs[:, 0]])
        self.copy = np.concatenate([self.copy, pairs[:, 1].astype(np.int64)])

    def find(self, uid: NDArray[np.uint64], copy: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places of pairs, -1 where there is none."""
        n = len(uid)
        if np.array_equal(self.uid[:n], uid) and np.array_equal(self.copy[:n], copy):
            return np.arange(n)  # the clips that were there from the first, in their order
        found = np.full(len(uid), -1, dtype=np.int64)
        for c in np.unique(copy):
            mine = np.flatnonzero(self.copy == c)
            mine = mine[np.argsort(self.uid[mine], kind="stable")]
            asked = np.flatnonzero(copy == c)
            if len(mine):
                at = np.minimum(np.searchsorted(self.uid[mine], uid[asked]), len(mine) - 1)
                found[asked] = np.where(self.uid[mine][at] == uid[asked], mine[at], -1)
        return found
