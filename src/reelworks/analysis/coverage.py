"""The state of every clip in every epoch of a run, as `clip_history.cover` read it from the records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.buckets.assign import Reason
from reelworks.catalog.store import Catalog
from reelworks.core.errors import UserError
from reelworks.schedule.cursor import Aliases

Json = dict[str, Any]
I64 = NDArray[np.int64]


class State(IntEnum):
    """State of a clip in an epoch; `Reason` has the numbers below these."""

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
        """The name as reports print it."""
        return self.name.lower()


LABELS = {int(s): s.label for s in (*Reason, *State)}
_CONSUMED = (State.TRAINED, State.FAILED, State.SKIPPED)


@dataclass(frozen=True)
class Lost:
    """A segment without a record, and what the run's events still prove of it.

    Attributes:
        segment: From 0.
        why: What is wrong with the record.
        steps: Steps of it that hold.
        trained, failed: Clips that these trained, and that failed in them.
    """

    segment: int
    why: str
    steps: int
    trained: int
    failed: int

    def __str__(self) -> str:
        return (
            f"segment {self.segment} has no record ({self.why}); by the events it had {self.steps} steps, with "
            f"{self.trained} clips trained and {self.failed} failed"
        )


@dataclass(frozen=True)
class EpochCoverage:
    """One epoch, for the clips of a `Coverage`.

    Attributes:
        generation: Times that the data were restarted from scratch.
        epoch: From 0.
        planned: Clips planned, all segments together.
        counts: Clips by label.
        ended: True once all its steps are done.
        lost: Segments without a record; then not every clip can be told.
        problems: What contradicts itself, each with the segment's name.
        state: Values of `State` or `Reason`.
        step: Step that took the clip, 0 where none did.
        failures: Reason by place.
        pruned: When the records were removed to make room, in seconds since 1970.
    """

    generation: int
    epoch: int
    planned: int
    counts: dict[str, int]
    ended: bool
    lost: list[Lost]
    problems: list[str]
    state: NDArray[np.int8]
    step: NDArray[np.int32]
    failures: dict[int, str] = field(default_factory=dict)
    pruned: float | None = None

    def number(self, state: State) -> int:
        """Clips in a state."""
        return self.counts.get(state.label, 0)

    @property
    def available(self) -> bool:
        """False where a record is gone, so that not every clip is accounted for."""
        return not self.lost and self.pruned is None

    @property
    def adds_up(self) -> bool:
        """True if planned = trained + failed + skipped + not yet, and nothing contradicts itself."""
        parts = sum(self.number(state) for state in (*_CONSUMED, State.NOT_YET))
        return self.available and not self.problems and self.planned == parts

    def to_json(self) -> Json:
        """Counts and whether they add up; no clip by name."""
        return {
            "generation": self.generation,
            "epoch": self.epoch,
            "planned": self.planned,
            "counts": self.counts,
            "done": self.ended,
            "available": self.available,
            "adds_up": self.adds_up,
            "lost": [vars(lost) for lost in self.lost],
            "problems": self.problems,
            "pruned": self.pruned,
        }

    def became(self, place: int) -> Json:
        """Return the state of one clip, with step and reason where it has them."""
        value: Json = {"generation": self.generation, "epoch": self.epoch}
        value["became"] = LABELS[int(self.state[place])]
        if self.step[place]:
            value["step"] = int(self.step[place])
        if place in self.failures:
            value["reason"] = self.failures[place]
        return value


@dataclass(frozen=True)
class Named:
    """A kept catalog by which clips have names.

    Attributes:
        catalog: At the newest version that a record speaks of.
        aliases: Rows whose clip goes by another key than its uid.
        uids: Of all its rows, by ordinal.
    """

    catalog: Catalog
    aliases: Aliases
    uids: NDArray[np.uint64]

    def paths(self, ordinal: I64) -> list[str]:
        """Dataset and path of rows."""
        rows = self.catalog.columns("dataset", "path").take(pa.array(ordinal))
        dataset = rows.column("dataset").cast(pa.large_string())
        paths: list[str] = pc.binary_join_element_wise(
            dataset, rows.column("path"), pa.scalar("/", pa.large_string())
        ).to_pylist()
        return paths

    def datasets(self, ordinal: I64) -> list[str]:
        """Datasets of rows."""
        names: list[str] = (
            self.catalog.columns("dataset").column("dataset").take(pa.array(ordinal)).to_pylist()
        )
        return names

    def keys_named(self, clip: str) -> NDArray[np.uint64]:
        """Keys of the clips that a person names, by any path that they had."""
        likely = pc.ends_with(self.catalog.columns("path").column("path"), Path(clip).name)
        rows = np.flatnonzero(likely.to_numpy())
        named = [o for o, path in zip(rows.tolist(), self.paths(rows), strict=True) if _matches(path, clip)]
        ordinal = np.array(named, dtype=np.int64)
        return self.aliases.keys(ordinal, self.uids[ordinal])


@dataclass(frozen=True)
class Coverage:
    """Clips and copies of a run, and what became of them.

    Attributes:
        uid: Key of each: the uid under which the run first met the clip.
        copy: Which of its showings.
        epochs: The epochs so far.
        named: Catalogs that name them.
        catalog, ordinal: For each the catalog that named it last, an index into `named`, and its row there.
    """

    uid: NDArray[np.uint64]
    copy: I64
    epochs: list[EpochCoverage]
    named: list[Named]
    catalog: NDArray[np.int8]
    ordinal: I64

    @property
    def problems(self) -> list[str]:
        """List contradictions in the account of some epoch."""
        return [problem for epoch in self.epochs for problem in epoch.problems]

    def paths(self, places: list[int]) -> list[str]:
        """Dataset and path of clips, as they were called last."""
        at = np.array(places, dtype=np.int64)
        paths = np.empty(len(at), dtype=object)
        for i, named in enumerate(self.named):
            mine = np.flatnonzero(self.catalog[at] == i)
            if len(mine):
                paths[mine] = named.paths(self.ordinal[at[mine]])
        return list(paths)

    def places(self, *, never_trained: bool = False, clip: str | None = None) -> list[int]:
        """Places of the clips asked for, by path.

        Args:
            never_trained: Only those that no epoch trained.
            clip: Only those of this path, with or without the dataset, or of this file on disk.

        Raises:
            UserError: No clip has that path.
        """
        # The catalog may have rows of datasets that no segment had.
        chosen = np.zeros(len(self.uid), dtype=np.bool_)
        for epoch in self.epochs:
            chosen |= epoch.state != State.ABSENT
        for epoch in self.epochs if never_trained else ():
            chosen &= epoch.state != State.TRAINED
        if clip is not None:
            chosen &= self._called(clip)
        places = np.flatnonzero(chosen).tolist()
        paths = dict(zip(places, self.paths(places), strict=True))
        return sorted(places, key=lambda i: (paths[i], int(self.copy[i])))

    def _called(self, clip: str) -> NDArray[np.bool_]:
        keys = [named.keys_named(clip) for named in self.named]
        called = np.isin(self.uid, np.concatenate([np.zeros(0, np.uint64), *keys]))
        if not called.any():
            raise UserError(
                "the run has no such clip",
                code="unknown-clip",
                field="--clip",
                value=clip,
                remedy="give its path below the dataset's folder; `reelworks coverage RUN --json` lists all",
            )
        return called

    def clips(self, places: list[int]) -> Iterator[Json]:
        """One JSON value for each place; epochs in which the clip was not there are left out."""
        for i, path in zip(places, self.paths(places), strict=True):
            became = [epoch.became(i) for epoch in self.epochs if epoch.state[i] != State.ABSENT]
            identity = {"path": path, "uid": int(self.uid[i]), "copy": int(self.copy[i])}
            yield {**identity, "epochs": became}

    def to_json(self, places: list[int]) -> Json:
        """Counts of all clips by epoch, and what became of those at `places`."""
        return {"epochs": [epoch.to_json() for epoch in self.epochs], "clips": list(self.clips(places))}


def _matches(path: str, asked: str) -> bool:
    """Tell whether a path is what a person typed: a part of it from a folder's name on, or a file on disk."""
    typed = Path(asked).as_posix()
    below = path.partition("/")[2]
    return f"/{path}".endswith(f"/{typed}") or (Path(typed).is_absolute() and typed.endswith(f"/{below}"))
