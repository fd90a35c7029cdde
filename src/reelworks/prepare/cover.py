"""Works out what became of every clip of a run: plan files, events and catalog put together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets.assign import Reason
from reelworks.prepare.coverage import LABELS, Coverage, EpochCoverage, State, path_of
from reelworks.prepare.data import RecipeData
from reelworks.prepare.former import FormerData
from reelworks.prepare.segments import Segment, segments
from reelworks.run import coverage as told
from reelworks.run.folder import RunFolder


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
    named = [path_of(rows, r) if r >= 0 else f"uid {u}" for r, u in zip(where, places.uid[gone], strict=True)]
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
