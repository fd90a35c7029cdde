"""Select the clips of a catalog that an epoch trains, assign them to buckets, and plan the epoch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core import arguments, blocks, digests
from reelworks.core.hash_rng import Purpose, bernoulli, hash64
from reelworks.core.words import tells_arguments
from reelworks.data.buckets import assign, degrees
from reelworks.data.buckets.assign import Assignment, Clips, Reason
from reelworks.data.buckets.table import EMPTY, BucketTable
from reelworks.data.catalog.config import DatasetConfig, Source
from reelworks.data.catalog.sources import ALIGNED, SOURCES
from reelworks.data.catalog.store import companions
from reelworks.data.catalog.store.companions import CompanionMatches
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import SCORE, as_numpy
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import clip_uses, data_spec, duplicates, eligibility, held_out
from reelworks.data.loader.clip_uses import ClipUses
from reelworks.data.loader.data_spec import SEED, DataSpec
from reelworks.data.loader.eligibility import ExcludeList
from reelworks.data.loader.plan_cache import PlanCache, Planned, Unplanned
from reelworks.data.media import decode
from reelworks.data.media.frame_index import FrameIndex
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule import cost, cursor
from reelworks.data.schedule.cursor import Excluded
from reelworks.data.schedule.plan import EpochPlan, PlanSpec, Samples, plan_epoch

I64 = NDArray[np.int64]
Integers = NDArray[Any]  # of any width
Mask = NDArray[np.bool_]
_FEW = 1 << 16  # clips that are looked up one by one
_SHAPES = ("num_frames", "fps", "height", "width", "kind")  # columns that only assignments read as a whole
_RATIOS = 1 << 9  # more than there are ratios of a source
# What is computed of the rows alone, whatever the bucket table.
_OF_ROWS = (
    "digest",
    "dataset_by_name",
    "frame_index",
    "exclude_list",
    "in_exclude_file",
    "companions",
    "source_layouts",
    "failed_filters",
    "excluded",
    "duplicate_groups",
    "is_held_out",
    "_uses",
    "frames",
)


_DATASET = {
    "catalog": arguments.a(Catalog, remedy="open or make one: Catalog.open(FOLDER), Catalog.scan(FOOTAGE, to=FOLDER)"),
    "table": arguments.a(BucketTable, remedy="make one: BucketTable.from_entries(ENTRIES, geometry=...)"),
    "spec": arguments.optional(arguments.a(DataSpec)),
    "rows": arguments.optional(arguments.a(CatalogRows)),
    "companion_rows": arguments.optional(arguments.a(CatalogRows)),
    "run": arguments.optional(arguments.a(RunFolder)),
}


@dataclass
class Dataset:
    """The clips of a catalog, the bucket of each, and the plan of each epoch.

    Attributes:
        catalog: The catalog, at the version to plan on.
        table: The bucket table.
        spec: All other settings; by default every dataset of the catalog, with default settings.
        rows: Live rows of the catalog that belong to the spec's datasets.
        companion_rows: Live rows of the controls, edit sources and loss masks of these clips.
        run: The run folder whose processes share their plans, or None.
        seed: Replaces the seed of `spec`.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_catalog
        >>> entry = rw.BucketEntry("64px", num_frames=[1, 5], batch_size=[4, 2])
        >>> table = rw.BucketTable.from_entries([entry], geometry=rw.Geometry((4, 8, 8), (1, 2, 2)))
        >>> dataset = rw.Dataset(sample_catalog(), table, seed=42)
        >>> len(dataset)  # clips of an epoch
        12
    """

    catalog: Catalog
    table: BucketTable
    spec: DataSpec = None  # type: ignore[assignment]  # `__post_init__` sets the defaults
    rows: CatalogRows = None  # type: ignore[assignment]
    companion_rows: CatalogRows = None  # type: ignore[assignment]
    run: RunFolder | None = None
    _plans: PlanCache = field(default_factory=PlanCache)
    seed: InitVar[int | None] = None

    @tells_arguments
    def __post_init__(self, seed: int | None) -> None:
        arguments.check(self, _DATASET)
        seed = arguments.checked_value("seed", seed, arguments.optional(SEED))
        self._last: tuple[int, BucketTable, DataSpec, Assignment] | None = None
        if self.rows is None:
            live = self.catalog.live()
            if self.spec is None:
                self.spec = DataSpec(datasets_of(live))
            self.rows = rows_of(live, [d.place for d in self.spec.datasets])
            self.companion_rows = rows_of(live, companion_sources(self.spec.datasets))
        if seed is not None:
            self.spec = replace(self.spec, seed=seed)

    def __getstate__(self) -> dict[str, Any]:
        """Return what makes an equal dataset in another process, which opens the catalog's files itself.

        The exclude list and the measured costs go along, as they are now. Plans do not: they are computed again.
        """
        state = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "_plans"}
        datasets = tuple(dataset.absolute() for dataset in self.spec.datasets)
        return state | {
            "spec": replace(self.spec, datasets=datasets),
            "rows": self.rows.ordinal,
            "companion_rows": self.companion_rows.ordinal,
            "exclude_list": self.exclude_list,
            "measured_ms": self.measured_ms,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _plans=PlanCache(), _last=None)
        for name in ("rows", "companion_rows"):
            setattr(self, name, _with_ordinals(self.catalog, state[name]))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = self.with_table(self.table)  # rows and settings never change
        other._plans = PlanCache()
        return other

    def __len__(self) -> int:
        """Return the clips that the first epoch trains, each repeat as one; other epochs may draw others."""
        return len(self.entries(0))

    def __bool__(self) -> bool:
        return True  # asking costs nothing

    def __repr__(self) -> str:
        names = ", ".join(dataset.dataset_name for dataset in self.spec.datasets)
        return f"{type(self).__name__}({names}: {len(self.rows)} rows, {len(self.table.buckets)} buckets, seed={self.spec.seed})"

    def metadata(self, uids: NDArray[np.uint64]) -> list[dict[str, Any]]:
        """Return the catalog's columns of clips by uid, as `MicroBatch.metadata` describes them."""
        at, place = np.unique(self.rows.find(uids), return_inverse=True)
        found = [_with_scores(row) for row in self.rows.take(at).to_table().to_pylist()]
        return [dict(found[i]) for i in place.tolist()]

    @cached_property
    def digest(self) -> str:
        """Digest of the catalog's state; for millions of clips it reads the catalog for many seconds, once."""
        both = [self.catalog.digest_of(rows) for rows in (self.rows, self.companion_rows)]
        return digests.digest_json(both) if len(self.companion_rows) else both[0]

    def _identities(self) -> list[str]:
        return [self.catalog.identity_of(rows) for rows in (self.rows, self.companion_rows)]

    def rows_at(self, ordinals: Integers) -> Integers:
        """Return the indices into `rows` of live clips by ordinal; for millions much faster than by uid."""
        if len(ordinals) < _FEW:  # those of a step: no table of all clips
            return np.searchsorted(self.rows.ordinal, ordinals)
        return blocks.taken(self._row_of_ordinal, ordinals)

    @cached_property
    def _row_of_ordinal(self) -> Integers:
        rows = np.full(int(self.rows.ordinal.max(initial=-1)) + 1, -1, dtype=blocks.kind_of(len(self.rows)))
        rows[self.rows.ordinal] = np.arange(len(self.rows), dtype=rows.dtype)
        return rows

    def with_table(self, table: BucketTable) -> Self:
        """Return the dataset with another bucket table; what was computed of its rows is not computed again."""
        other = replace(self, table=table)
        other.__dict__.update({name: self.__dict__[name] for name in _OF_ROWS if name in self.__dict__})
        if self._last is not None and _assigns_alike(self._last[1], table):
            epoch, _, spec, result = self._last
            other._last = (epoch, table, spec, result)
        return other

    def forget_planning(self) -> None:
        """Free what only the making of plans needs, for ranks that map a plan; it is computed again when it is needed."""
        self._last = None
        self._forget_uses()

    def _forget_uses(self) -> None:
        """Free what an assignment is made of: gigabytes for a hundred million clips, but computed in a few seconds."""
        for name in ("_uses", "frames", "excluded", "in_exclude_file"):
            vars(self).pop(name, None)
        self.rows.release(*_SHAPES)

    @cached_property
    def dataset_by_name(self) -> dict[str, DatasetConfig]:
        """The spec's datasets by name."""
        return {d.dataset_name: d for d in self.spec.datasets}

    @cached_property
    def frame_index(self) -> FrameIndex:
        """Frame times of long videos."""
        return FrameIndex(self.catalog.path)

    @cached_property
    def exclude_list(self) -> ExcludeList:
        """The list of clips not to train."""
        return eligibility.read_exclude_list(self.spec.exclude_file)

    @cached_property
    def in_exclude_file(self) -> NDArray[np.bool_]:
        """True for rows that the exclude list names."""
        return self.exclude_list.rows(self.rows)

    @cached_property
    def companions(self) -> dict[str, CompanionMatches]:
        """Companions of the rows by kind, for the kinds that at least one dataset uses."""
        by_kind = {}
        for kind in companions.KINDS:
            folders = {d.dataset_name: d.companions[kind] for d in self.spec.datasets if kind in d.companions}
            if folders:
                whole = kind in SOURCES and self.spec.whole_sources
                own_sizes = whole or (kind in SOURCES and self.spec.source_multiple is not None)
                found = companions.find(self.rows, self.companion_rows, kind, folders, own_sizes=own_sizes)
                by_kind[kind] = replace(found, ratio=np.full_like(found.ratio, ALIGNED)) if whole else found
        least = {d.dataset_name: d.min_sources for d in self.spec.datasets if d.min_sources is not None}
        companions.excuse(self.rows, [found for kind, found in by_kind.items() if kind in SOURCES], least)
        return by_kind

    @cached_property
    def source_layouts(self) -> I64 | None:
        """Number of the layout of each row's sources: which it has, and their ratios; None if all rows have the same."""
        kinds = [kind for kind in SOURCES if kind in self.companions]
        if not kinds:
            return None
        layout = np.zeros(len(self.rows), dtype=np.int64)
        for kind in kinds:
            found = self.companions[kind]
            layout = layout * _RATIOS + np.where(found.row < 0, 0, found.ratio - ALIGNED + 1)
        return None if (layout == layout[:1]).all() else np.unique(layout, return_inverse=True)[1]

    @cached_property
    def failed_filters(self) -> Any:
        """Parts of its dataset's filter that each row fails, as a dictionary array; null where it fails none."""
        return eligibility.failed_filters(self.rows, self.spec.datasets)

    @cached_property
    def excluded(self) -> NDArray[np.int8]:
        """Reason why each row is excluded whatever its shape, or `Reason.NONE`."""
        return eligibility.exclusion_reasons(
            self.rows,
            self.spec.datasets,
            self.spec.data,
            filtered=as_numpy(self.failed_filters.is_valid()) if any(d.filter for d in self.spec.datasets) else None,
            companions=self.companions.values(),
            in_exclude_file=self.in_exclude_file,
            sound=self.spec.sound,
        )

    @cached_property
    def duplicate_groups(self) -> duplicates.Groups | None:
        """Groups of near-duplicates of which an epoch uses one clip each; None if there are none."""
        return duplicates.groups(self.rows, self.spec.datasets)

    @cached_property
    def is_held_out(self) -> Mask:
        """True for rows that are held out, which takes all fingerprints to compute."""
        return held_out.held_out(self.rows, self.spec.seed, self.spec.split, self.spec.group)

    @cached_property
    def _uses(self) -> ClipUses:
        return clip_uses.uses(self.rows, self.spec.datasets)

    @cached_property
    def frames(self) -> NDArray[Any]:
        """Frames of each row at the frame rate of reading; 1 for a picture."""
        config, r = self.spec.data, self.rows
        frames = blocks.elementwise(
            lambda count, fps, variable, is_image: np.where(
                is_image, 1, decode.frames_available(count, np.maximum(fps, 1e-6), config, variable)
            ),
            *(r.num_frames, r.fps, r.variable_fps, r.is_image),
            dtype=np.int32,
        )
        r.release("num_frames", "fps", "variable_fps")
        return frames

    @tells_arguments
    def clips(self) -> tuple[Clips, Integers]:
        """Return the clips to assign, a repeat as one element each, and the row of every element."""
        r, (row, copy) = self.rows, (self._uses.row, self._uses.copy)
        r.load(*_SHAPES, "captioned", "readable", *(("own_group",) if self.spec.split else ()))
        clips = Clips(r.uid, copy, self.frames, r.height, r.width, r.is_image, self.excluded, self.is_held_out)
        if len(row) != len(r) or (row[1:] == row[:-1]).any():  # else a copy of millions of clips is saved
            clips = replace(clips.take(row), copy=copy)
        if self._uses.choice is not None:
            # Validation uses each clip once, at the largest entry that it fills.
            choice = np.where(clips.held_out, -1, self._uses.choice)
            clips = replace(clips, choice=choice, allowed=clip_uses.allowed(self.spec.datasets, self.table))
        return clips, row

    def assigned(self, epoch: int, consumed: Excluded | None = None) -> tuple[Clips, Integers, Assignment]:
        """Return every clip and repeat of an epoch, the row of each, and their assignment.

        Where `repeats` is fractional, chance decides whether the last repeat is trained. Of near-duplicates that count
        once, a clip that earlier segments of the epoch `consumed` stands for the others.
        """
        clips, row = self.clips()
        result = self._latest(epoch) or self._assign(epoch, clips, row)
        if self.duplicate_groups is not None and consumed is not None and consumed.bits.any():
            ordinal = np.flatnonzero(consumed.bits.any(axis=1))
            used = np.isin(self.rows.uid, self.catalog.uids()[ordinal])
            result = self._once(
                self.duplicate_groups, self._with_duplicates(epoch, clips, row), clips, row, epoch, used
            )
        return clips, row, result

    def _once(
        self,
        groups: duplicates.Groups,
        result: Assignment,
        clips: Clips,
        row: Integers,
        epoch: int,
        used: Mask | None = None,
    ) -> Assignment:
        used = np.zeros(len(self.rows), dtype=np.bool_) if used is None else used
        return duplicates.count_once(
            groups,
            result,
            row,
            held_out=clips.held_out,
            uid=self.rows.uid,
            used=used,
            seed=self.spec.seed,
            epoch=epoch,
        )

    def _assign(self, epoch: int, clips: Clips, row: Integers) -> Assignment:
        result = self._with_duplicates(epoch, clips, row)
        if self.duplicate_groups is not None:
            result = self._once(self.duplicate_groups, result, clips, row, epoch)
        self._last = (epoch, self.table, self.spec, result)
        return result

    def _with_duplicates(self, epoch: int, clips: Clips, row: Integers) -> Assignment:
        """Return the assignment of an epoch as if near-duplicates did not count once."""
        result = assign.assign(clips, self.table, seed=self.spec.seed, epoch=epoch)
        if any(d.repeats % 1 for d in self.spec.datasets):
            chance = clip_uses.showings(self.rows, self.spec.datasets)[row] - self._uses.repeat
            at = np.flatnonzero((chance < 1) & (result.reason == Reason.NONE))
            drawn = bernoulli(hash64(self.spec.seed, epoch, clips.uid[at], clips.copy[at], Purpose.SHARE), chance[at])
            result.reason[at[~drawn]] = Reason.NOT_DRAWN
        return result

    def _latest(self, epoch: int) -> Assignment | None:
        """Return the assignment of an epoch if it was the last one computed: plan and reports need the same."""
        of_epoch, table, spec, result = self._last or (None, None, None, None)
        return result if of_epoch == epoch and table is self.table and spec is self.spec else None

    def assignment(self, epoch: int) -> tuple[Assignment, Integers]:
        """Return the assignment of every clip and repeat of an epoch, and the row of each."""
        latest = self._latest(epoch)
        if latest is None:
            _, row, latest = self.assigned(epoch)
        else:
            row = self._uses.row
        return latest, row

    @tells_arguments
    def entries(self, epoch: int) -> Samples:
        """Return the clips that an epoch trains."""
        return self.narrow_entries(epoch).wide()

    def narrow_entries(self, epoch: int) -> Samples:
        """Return what `entries` does in integers of fewer bits, which overflow when they are calculated with."""
        entries = self._entries_without_reason(*self.assigned(epoch))
        self._forget_uses()
        return entries

    def _entries_without_reason(self, clips: Clips, row: Integers, result: Assignment) -> Samples:
        where = blocks.indices(result.reason == Reason.NONE)
        entries = self._entries(clips, row, result, where)
        by = self.spec.data.locality
        return entries if by is None else replace(entries, group=blocks.taken(self.rows.group_keys(by), row[where]))

    def held_out(self) -> Samples:
        """Return the clips that validation uses, each once, in an order drawn from the seed."""
        clips, row = self.clips()
        result = assign.assign(clips, self.table, seed=self.spec.seed, epoch=0)
        if self.duplicate_groups is not None:
            result = self._once(self.duplicate_groups, result, clips, row, epoch=0)
        where = np.flatnonzero((result.reason == Reason.HELD_OUT) & (clips.copy == 0))
        where = where[np.argsort(hash64(self.spec.seed, clips.uid[where]), kind="stable")]
        return self._entries(clips, row, result, where[: self.spec.max_held_out]).wide()

    def _entries(self, clips: Clips, row: Integers, result: Assignment, where: Integers) -> Samples:
        ordinal, bucket = self._ordinals(row, where), blocks.taken(result.bucket, where)
        layouts = self.source_layouts
        layout = None if layouts is None else layouts[row[where]]
        return Samples(blocks.taken(clips.uid, where), blocks.taken(clips.copy, where), ordinal, bucket, layout=layout)

    def _ordinals(self, row: Integers, where: Integers) -> Integers:
        """Return the ordinals of some uses, in the narrowest type that holds those of the catalog."""
        ordinal, kind = self.rows.ordinal, blocks.narrow(self.rows.ordinal[-1:]).dtype
        return blocks.elementwise(lambda at: ordinal[row[at]], where, dtype=kind)

    @cached_property
    def measured_ms(self) -> dict[str, float]:
        """Milliseconds per clip by bucket, as `cost.measured` lists them, of all ranks that share it together."""
        path, exchange = self.spec.cost.measured, self.spec.exchange
        measured = cost.read_measured(path, [b.name for b in self.table.buckets])
        if exchange is None or not cost.is_of_one_rank(path):
            return measured
        return degrees.with_exchanges(measured, self.table, exchange)

    @tells_arguments
    def plan_spec(self, micro_batches_per_step: int, same_bucket_run: int) -> PlanSpec:
        """Return everything that determines a plan, except the entries.

        Args:
            micro_batches_per_step: Micro-batches of an optimizer step, over all ranks.
            same_bucket_run: Number of micro-batches of one bucket that run at the same time.
        """
        names = [bucket.name for bucket in self.table.buckets]
        incomplete_batch = self.table.config.incomplete_batch
        return PlanSpec(
            seed=self.spec.seed,
            micro_batches_per_step=micro_batches_per_step,
            same_bucket_run=same_bucket_run,
            incomplete_batch=incomplete_batch,
            batch_sizes=tuple(int(n) for n in self.table.column_sizes()),
            costs_us=cost.costs_us(names, self.table.tokens(), self.spec.cost, self.measured_ms),
            buckets_digest=data_spec.plan_digest(self.spec, self.table, self.exclude_list),
            merge_to=data_spec.merge_targets(self.table, incomplete_batch),
            window_clips=self.spec.data.shuffle_window if self.spec.data.locality else 0,
        )

    @tells_arguments
    def plan(
        self, spec: PlanSpec, epoch: int, *, data_restarts: int = 0, segment: int = 0, excluded: Excluded | None = None
    ) -> EpochPlan:
        """Return the plan of an epoch; the last few are cached, since reading ahead and training share them.

        Args:
            spec: Everything that determines the plan, except the entries.
            epoch: Number of the epoch, from 0.
            data_restarts: Number of restarts of the data.
            segment: Number of the segment in the epoch, from 0.
            excluded: Clips that earlier segments consumed.
        """
        consumed = Excluded.none() if excluded is None else excluded
        return self.planned(spec, (data_restarts, epoch, segment), consumed).plan

    def planned(self, spec: PlanSpec, place: tuple[int, int, int], excluded: Excluded) -> Planned:
        """Return the plan at (data_restarts, epoch, segment), as `plan` does, and the clips that it leaves out."""
        epoch = place[1]
        rows = [] if self.run is None else self._identities()  # plans that are kept in memory alone are of these rows
        key = digests.digest_json([rows, spec.digest(), epoch, excluded.digest()])
        return self._plans.get(self.run, place, key, lambda: self._make(spec, epoch, excluded))

    def _make(self, spec: PlanSpec, epoch: int, excluded: Excluded) -> Planned:
        clips, row, result = self.assigned(epoch, excluded)
        self._forget_uses()
        out = result.reason != Reason.NONE
        entries = self._entries_without_reason(clips, row, result)
        if excluded.bits.any():
            entries = cursor.remaining_after(entries, excluded, self.catalog.uids())
            out |= excluded.holds(self.rows.ordinal[row], clips.copy)
        others = self.unplanned(clips, row, result, blocks.indices(out))
        del clips, row, result, out  # free the memory of millions of clips before planning
        return Planned(plan_epoch(entries, spec, epoch), others)

    def unplanned(self, clips: Clips, row: Integers, result: Assignment, at: Integers) -> Unplanned:
        """Return those uses of an assignment as clips that a plan leaves out."""
        nearest = result.nearest[at].astype(np.int32)
        instead = np.flatnonzero(np.isin(result.reason[at], (Reason.DUPLICATE, Reason.DUPLICATE_TURN)))
        nearest[instead] = self.rows.ordinal[nearest[instead]]
        return Unplanned(self._ordinals(row, at), clips.copy[at], result.reason[at], nearest)


def _assigns_alike(a: BucketTable, b: BucketTable) -> bool:
    """Return whether two tables differ in batch sizes and incomplete batches at most, on which no clip's bucket depends."""
    unsized_a, unsized_b = (
        replace(
            table,
            entries=tuple(replace(entry, batch_size=1) for entry in table.entries),
            buckets=tuple(replace(bucket, batch_size=1) for bucket in table.buckets),
            config=EMPTY.config,
            given=(),
        )
        for table in (a, b)
    )
    return unsized_a == unsized_b


def _with_scores(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a row with its scores in a dict of their own."""
    scores = {name.removeprefix(SCORE): row.pop(name) for name in list(row) if name.startswith(SCORE)}
    return row | {"scores": {name: score for name, score in scores.items() if score is not None}}


def _with_ordinals(catalog: Catalog, ordinals: I64) -> CatalogRows:
    """Return rows of a catalog, without a copy if they are those of its live clips."""
    live = catalog.live()
    return live if np.array_equal(live.ordinal, ordinals) else catalog.rows_at(ordinals)


def rows_of(rows: CatalogRows, wanted: list[Source]) -> CatalogRows:
    """Return the rows of some datasets."""
    names = {source.name for source in wanted}
    known = rows.dataset.dictionary.to_pylist()
    if names.issuperset(known):
        return rows  # a copy of millions of rows takes gigabytes
    if names.isdisjoint(known):
        return rows.take(np.zeros(0, dtype=np.int64))
    mine = rows.of_datasets(names)
    return rows if mine.all() else rows.take(mine)


def companion_sources(datasets: Iterable[DatasetConfig]) -> list[Source]:
    """Return the folders of companions that datasets name; none may lie inside the folder of its clips."""
    return [s for d in datasets for s in companions.sources(d.place, d.companions)]


def datasets_of(rows: CatalogRows) -> tuple[DatasetConfig, ...]:
    """Return the datasets of a catalog's live rows, each with default settings."""
    clips = companions.without(rows)
    name = pc.cast(clips.dataset, pa.large_string())
    pairs = pa.table({"name": name, "root": pc.cast(clips.root, pa.large_string())})
    first = pairs.group_by("name", use_threads=False).aggregate([("root", "first")]).sort_by("name").to_pylist()
    return tuple(DatasetConfig(path=pair["root_first"], name=pair["name"]) for pair in first)
