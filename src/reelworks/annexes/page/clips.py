"""The clips of a recipe or catalog as the page shows them: what the first epoch makes of each, chosen and sorted by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache, cachedmethod
from numpy.typing import NDArray

from reelworks.core.arrays import F32, I32, I64, Mask
from reelworks.core.errors import UserError
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.store.schema import as_numpy
from reelworks.data.loader.dataset import Dataset
from reelworks.data.run.folder import RunFolder
from reelworks.reports.run_facts import REASONS
from reelworks.training.coverage import clip_history
from reelworks.training.coverage.coverage import State
from reelworks.training.plan import discarded
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

EPOCH = 0  # whose crops, frames and reasons are shown
SORTS = {"name": "name", "cropped": "most cropped", "longest": "longest", "largest": "largest"}
_KEPT_SELECTIONS = 6
_NEVER, _TRAINED, _FAILED, _UNKNOWN = range(4)
_COVERAGE = (("never", "never trained"), ("trained", "trained"), ("failed", "failed"), ("unknown", "no record"))


@dataclass(frozen=True)
class Value:
    """A value by which clips are chosen."""

    id: str
    label: str
    hint: str = ""


@dataclass(frozen=True)
class Facet:
    """A property of clips by which they are chosen: a number for each clip, and what the numbers stand for."""

    name: str
    label: str
    values: Sequence[Value]
    of_row: NDArray[np.integer[Any]]  # index into `values`

    def counts(self, among: Mask | None) -> list[int]:
        """Return the number of clips of each value."""
        chosen = self.of_row if among is None else self.of_row[among]
        counts: list[int] = np.bincount(chosen, minlength=len(self.values)).tolist()
        return counts

    def mask(self, ids: Sequence[str]) -> Mask:
        """Return the clips that have one of some values."""
        wanted = np.array([value.id in ids for value in self.values], dtype=np.bool_)
        return np.asarray(wanted[self.of_row])


class Query(NamedTuple):
    """A choice of clips, and their order."""

    chosen: tuple[tuple[str, tuple[str, ...]], ...] = ()  # facets with the values of each
    text: str = ""
    sort: str = "name"


class Selection(NamedTuple):
    """Clips that a query chooses, in its order, and the numbers beside the values of each facet.

    The numbers of a facet count the clips that the rest of the query chooses, so they add up to all of these.
    """

    rows: I32
    counts: dict[str, list[int]]


@dataclass
class ClipView:
    """The clips of a recipe or catalog, with what the first epoch makes of each.

    Attributes:
        data: The recipe's data set, or that of a catalog, which has no buckets.
        reason: Why the epoch leaves a clip out; `Reason.NONE` if it trains it.
        bucket: Bucket of each clip, -1 for none.
        copy: The repeat that is shown.
        nearest: For clips that fit no bucket, the entry that they miss by least; else -1.
        lost: Share of the frame that the crop cuts away.
    """

    data: Dataset
    reason: NDArray[np.int8]
    bucket: I32
    copy: I64
    nearest: I32
    lost: F32
    coverage: NDArray[np.int8] | None = None
    shared: _OfCatalog = None  # type: ignore[assignment]  # `read` sets it
    limited: dict[str, I32] = field(default_factory=dict)  # by dataset, the clips on which limits may be set
    _selections: LRUCache[Query, Selection] = field(init=False, default_factory=lambda: LRUCache(_KEPT_SELECTIONS))
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    @property
    def recipe(self) -> Recipe | None:
        """The recipe; None for a catalog."""
        return self.data.recipe if isinstance(self.data, RecipeData) else None

    def __len__(self) -> int:
        return len(self.data.rows)

    @cached_property
    def facets(self) -> dict[str, Facet]:
        """Properties by which clips can be chosen, by name."""
        rows, buckets = self.data.rows, self.data.table.buckets
        planned = Value("planned", "planned" if self.recipe else "readable")
        reasons = [planned, *(Value(reason.label, *REASONS[reason.label]) for reason in list(Reason)[1:])]
        facets = [Facet("reason", "First epoch" if self.recipe else "State", reasons, self.reason)]
        if buckets:
            values = [*(Value(bucket.name, bucket.name) for bucket in buckets), Value("none", "no bucket")]
            facets.append(Facet("bucket", "Bucket", values, np.where(self.bucket < 0, len(buckets), self.bucket)))
        names = rows.dataset.dictionary.to_pylist()
        datasets = as_numpy(rows.dataset.indices)
        facets.append(Facet("dataset", "Dataset", [Value(name, name) for name in names], datasets))
        kinds = np.where(rows.is_video, 0, np.where(rows.is_image, 1, 2)).astype(np.int8)
        named = [Value("video", "video"), Value("image", "picture"), Value("other", "neither")]
        facets.append(Facet("kind", "Kind", named, kinds))
        if self.coverage is not None:
            facets.append(Facet("coverage", "In its runs", [Value(*one) for one in _COVERAGE], self.coverage))
        return {facet.name: facet for facet in facets}

    @cachedmethod(attrgetter("_selections"), lock=attrgetter("_lock"))
    def select(self, query: Query) -> Selection:
        """Return the clips that a query chooses; the last few answers are kept, since pages of one are asked for."""
        clips, text = self.data.rows, query.text
        found = [contains(clips.path, text) | contains(clips.caption, text)] if text else []
        masks = {name: self.facets[name].mask(ids) for name, ids in query.chosen if name in self.facets and ids}
        counts = {}
        for name, facet in self.facets.items():
            others = [*found, *(mask for other, mask in masks.items() if other != name)]
            counts[name] = facet.counts(np.logical_and.reduce(others) if others else None)
        order, both = self.order(query.sort), [*found, *masks.values()]
        rows = order[np.logical_and.reduce(both)[order]] if both else order
        return Selection(rows, counts)

    def order(self, sort: str) -> I32:
        """Return all rows in an order of `SORTS`."""
        rows, by_name = self.data.rows, self.shared.by_name
        if sort == "cropped":
            key: NDArray[Any] = self.lost
        elif sort == "longest":
            key = rows.duration_seconds
        elif sort == "largest":
            key = rows.height * rows.width
        else:
            return by_name
        if sort not in self.shared.orders or (sort == "cropped" and self.shared.orders[sort][0] is not key):
            self.shared.orders[sort] = key, by_name[np.argsort(-key[by_name], kind="stable")].astype(np.int32)
        return self.shared.orders[sort][1]

    def row_of(self, ordinal: int) -> int:
        """Return the row of a clip by its permanent number in the catalog."""
        ordinals = self.data.rows.ordinal
        at = int(np.searchsorted(ordinals, ordinal))
        if at == len(ordinals) or ordinals[at] != ordinal:
            raise UserError(
                "the catalog has no such clip any more",
                code="not-found",
                field="clip",
                value=ordinal,
                remedy="load the page again",
            )
        return at

    def with_reason(self, row: int, reason: Reason) -> ClipView:
        """Return the clips with another reason for one of them, until they are read again."""
        reasons = self.reason.copy()
        reasons[row] = reason
        return replace(self, reason=reasons, limited={})


@dataclass
class _OfCatalog:
    """Orders that do not depend on the recipe's buckets, and are kept when only these change."""

    by_name: I32
    orders: dict[str, tuple[NDArray[Any], I32]] = field(default_factory=dict)


Tell = Callable[[str, float], None]


def read(data: Dataset, runs: Sequence[Path], former: ClipView | None, tell: Tell = lambda *_: None) -> ClipView:
    """Read a dataset's clips, and what its recipe, if it has one, makes of them.

    Args:
        runs: Run folders of the recipe, whose records tell which clips were trained.
        former: The clips as they were, whose texts and order are used again if the catalog is the same.
        tell: Called with what is done next, and the share of the work that is done.
    """
    same = former is not None and former.data.digest == data.digest
    if same and former is not None:
        data.rows, data.companion_rows = former.data.rows, former.data.companion_rows
    tell("sorting clips into buckets", 0.25)
    clips = _assign(data) if isinstance(data, RecipeData) else _leave_unassigned(data)
    if same and former is not None:
        clips.shared = former.shared
    else:
        tell("reading captions and paths", 0.4)
        data.rows.load("path", "caption", "dataset", "kind", "duration_seconds")
        tell("ordering clips by name", 0.65)
        clips.shared = _OfCatalog(as_numpy(pc.sort_indices(data.rows.path)).astype(np.int32))
    if runs:
        tell("reading the records of runs", 0.8)
        clips.coverage = _read_coverage(clips, runs)
    for sort in SORTS:
        clips.order(sort)
    pa.default_memory_pool().release_unused()  # what reading took beside its results
    return clips


def _assign(data: RecipeData) -> ClipView:
    """Take the assignment of the first epoch; of a clip's repeats the first that is trained is shown."""
    found, row, result = data.assigned(EPOCH)
    count = len(data.rows)
    shown = np.arange(count)
    if len(row) != count:
        shown = np.zeros(count, dtype=np.int64)
        every, trained = np.arange(len(row)), np.flatnonzero(result.reason == Reason.NONE)
        shown[row[::-1]] = every[::-1]
        shown[row[trained][::-1]] = trained[::-1]
    bucket = result.bucket[shown]
    clips = ClipView(
        data, result.reason[shown], bucket, found.copy[shown], result.nearest[shown], np.zeros(count, dtype=np.float32)
    )
    inside = np.flatnonzero(bucket >= 0)
    clips.lost[inside] = discarded.lost_shares(data, inside, bucket[inside].astype(np.int64))
    return clips


def _leave_unassigned(data: Dataset) -> ClipView:
    count = len(data.rows)
    none = np.full(count, -1, dtype=np.int32)
    return ClipView(data, data.excluded, none, np.zeros(count, np.int64), none, np.zeros(count, np.float32))


def _read_coverage(clips: ClipView, runs: Sequence[Path]) -> NDArray[np.int8]:
    """Return what became of each clip in all epochs of some runs."""
    rows = clips.data.rows
    state = np.full(len(rows), _NEVER, dtype=np.int8)
    for path in runs:
        try:
            coverage = clip_history.cover(RunFolder(path))
        except (UserError, OSError, ValueError):  # a run that has not begun, or whose catalog is gone
            continue
        for number, named in enumerate(coverage.named):
            mine = np.flatnonzero(coverage.catalog == number)
            row = rows.find(named.uids[coverage.ordinal[mine]])
            mine, row = mine[row >= 0], row[row >= 0]
            for epoch in coverage.epochs:
                became = epoch.state[mine]
                for of_epoch, code in ((State.NOT_AVAILABLE, _UNKNOWN), (State.FAILED, _FAILED)):
                    where = row[became == of_epoch]
                    state[where] = np.where(state[where] == _TRAINED, _TRAINED, code)
                state[row[became == State.TRAINED]] = _TRAINED
    return state


def contains(texts: Any, wanted: str) -> Mask:
    """Return which elements of an Arrow array of texts contain a text, whatever its case; null has none."""
    return as_numpy(pc.match_substring(texts, wanted, ignore_case=True).fill_null(False))


def query_of(parameters: Mapping[str, Sequence[str]], clips: ClipView) -> Query:
    """Return the query in an address; unknown names are ignored, as an old address may have them."""
    chosen = tuple((name, tuple(parameters[name])) for name in clips.facets if parameters.get(name))
    sort = (parameters.get("sort") or ["name"])[0]
    return Query(chosen, (parameters.get("q") or [""])[0][:200], sort if sort in SORTS else "name")
