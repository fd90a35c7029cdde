"""What became of every clip in every epoch of a run, as `cover.cover` found out."""

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
        return self.former[place] if row < 0 else path_of(self.rows, row)

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
        rows = [r for r in np.flatnonzero(likely).tolist() if _matches(path_of(self.rows, r), clip)]
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


def path_of(rows: CatalogRows, row: int) -> str:
    """Dataset and path of a row, as reports print it."""
    return f"{rows.dataset[row].as_py()}/{rows.path[row].as_py()}"


def _matches(path: str, asked: str) -> bool:
    """Tell whether a path is what a person typed: a part of it from a folder's name on, or a file on disk."""
    typed = Path(asked).as_posix()
    below = path.partition("/")[2]
    return f"/{path}".endswith(f"/{typed}") or (Path(typed).is_absolute() and typed.endswith(f"/{below}"))
