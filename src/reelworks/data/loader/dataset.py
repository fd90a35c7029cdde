"""Select the clips of a catalog that an epoch trains, assign them to buckets, and plan the epoch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from reelworks.core import arguments, blocks, digests
from reelworks.core.arguments import checked
from reelworks.core.arrays import Integers, Mask
from reelworks.core.errors import UserError, first_few
from reelworks.core.hash_rng import Purpose, bernoulli, hash64
from reelworks.core.words import tells_arguments
from reelworks.data.buckets import assign, degrees
from reelworks.data.buckets.assign import Assignment, Clips, Reason
from reelworks.data.buckets.table import EMPTY, BucketTable
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import clip_uses, data_spec, duplicates, held_out
from reelworks.data.loader.catalog_view import CatalogView, companion_sources, datasets_of, rows_of
from reelworks.data.loader.data_spec import SEED, DataSpec
from reelworks.data.loader.plan_cache import PlanCache, Planned, Unplanned
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule import cost, cursor
from reelworks.data.schedule.cost_fit import BatchTime
from reelworks.data.schedule.cursor import Excluded
from reelworks.data.schedule.plan import EpochPlan, PlanSpec, Samples, plan_epoch

_SHAPES = ("num_frames", "fps", "height", "width", "kind")  # columns that only assignments read as a whole
_FEW = 100_000


@dataclass(init=False, repr=False)
class Dataset(CatalogView):
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
    spec: DataSpec
    rows: CatalogRows
    companion_rows: CatalogRows
    run: RunFolder | None
    _plans: PlanCache

    @checked(
        catalog=arguments.a(Catalog, remedy="open or make one: Catalog.open(FOLDER), Catalog.scan(FOOTAGE, to=FOLDER)"),
        table=arguments.a(BucketTable, remedy="make one: BucketTable.from_entries(ENTRIES, geometry=...)"),
        spec=arguments.optional(arguments.a(DataSpec)),
        rows=arguments.optional(arguments.a(CatalogRows)),
        companion_rows=arguments.optional(arguments.a(CatalogRows)),
        run=arguments.optional(arguments.a(RunFolder)),
        seed=arguments.optional(SEED),
    )
    def __init__(
        self,
        catalog: Catalog,
        table: BucketTable,
        spec: DataSpec | None = None,
        rows: CatalogRows | None = None,
        companion_rows: CatalogRows | None = None,
        run: RunFolder | None = None,
        _plans: PlanCache | None = None,
        seed: int | None = None,
    ) -> None:
        spec = DataSpec(datasets_of(catalog.live())) if spec is None else spec
        if rows is None:
            _require_scanned(spec, catalog)
            rows = rows_of(catalog.live(), [d.place for d in spec.datasets])
            companion_rows = rows_of(catalog.live(), companion_sources(spec.datasets))
        assert companion_rows is not None, "they are given with the rows"
        spec = spec if seed is None else replace(spec, seed=seed)
        super().__init__(catalog, spec, rows, companion_rows)
        self.table = table.with_short_clips(spec.data.short_clips)
        self.run, self._plans = run, PlanCache() if _plans is None else _plans
        self._last: tuple[int, BucketTable, DataSpec, Assignment] | None = None

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
        live = self.catalog.live()  # without a copy of its rows, if they are all of them
        for name in ("rows", "companion_rows"):
            alike = np.array_equal(live.ordinal, state[name])
            setattr(self, name, live if alike else self.catalog.rows_at(state[name]))

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

    def with_table(self, table: BucketTable) -> Self:
        """Return the dataset with another bucket table; what was computed of its rows is not computed again."""
        table = table.with_short_clips(self.spec.data.short_clips)
        other = object.__new__(type(self))
        vars(other).update(vars(self), table=table, _last=None)
        vars(other).pop("measured_ms", None)  # of the buckets
        if self._last is not None and _assigns_alike(self._last[1], table):
            epoch, _, spec, result = self._last
            other._last = (epoch, table, spec, result)
        return other

    def forget_planning(self) -> None:
        """Free what only the making of plans needs, for ranks that map a plan; it is computed again when it is needed."""
        self._last = None
        self._forget_uses()

    def _forget_uses(self) -> None:
        """Free what an assignment is made of: gigabytes for a hundred million clips, but computed in a few seconds.

        That of few clips stays, since a forecast plans a hundred epochs of them.
        """
        if len(self.rows) > _FEW:
            for name in ("uses", "frames", "excluded", "in_exclude_file"):
                vars(self).pop(name, None)
            self.rows.release(*_SHAPES)

    @tells_arguments
    def clips(self) -> tuple[Clips, Integers]:
        """Return the clips to assign, a repeat as one element each, and the row of every element."""
        r, (row, copy) = self.rows, (self.uses.row, self.uses.copy)
        r.load(*_SHAPES, "captioned", "readable", *(("own_group",) if self.spec.split else ()))
        clips = Clips(r.uid, copy, self.frames, r.height, r.width, r.is_image, self.excluded, self.is_held_out)
        if len(row) != len(r) or (row[1:] == row[:-1]).any():  # else a copy of millions of clips is saved
            clips = replace(clips.take(row), copy=copy)
        if self.uses.choice is not None:
            # Validation uses each clip once, at the largest entry that it fills.
            choice = np.where(clips.held_out, -1, self.uses.choice)
            clips = replace(clips, choice=choice, allowed=clip_uses.allowed(self.spec.datasets, self.table))
        return clips, row

    def assigned(self, epoch: int, consumed: Excluded | None = None) -> tuple[Clips, Integers, Assignment]:
        """Return every clip and repeat of an epoch, the row of each, and their assignment.

        Where `repeats` is fractional, chance decides whether the last repeat is trained. Of near-duplicates that count
        once, a clip that earlier segments of the epoch `consumed` stands for the others.
        """
        clips, row = self.clips()
        if (result := self._latest(epoch)) is None:
            result = self._once(self._with_duplicates(epoch, clips, row), clips, row, epoch)
            self._last = (epoch, self.table, self.spec, result)
        if self.duplicate_groups is not None and consumed is not None and consumed.bits.any():
            used = np.isin(self.rows.uid, self.catalog.uids()[np.flatnonzero(consumed.bits.any(axis=1))])
            result = self._once(self._with_duplicates(epoch, clips, row), clips, row, epoch, used)
        return clips, row, result

    def _once(
        self, result: Assignment, clips: Clips, row: Integers, epoch: int, used: Mask | None = None
    ) -> Assignment:
        """Return an assignment in which of near-duplicates that count once only one is left."""
        if (groups := self.duplicate_groups) is None:
            return result
        used = np.zeros(len(self.rows), dtype=np.bool_) if used is None else used
        return duplicates.count_once(
            groups, result, row, held_out=clips.held_out, uid=self.rows.uid, used=used, seed=self.spec.seed, epoch=epoch
        )

    def _with_duplicates(self, epoch: int, clips: Clips, row: Integers) -> Assignment:
        """Return the assignment of an epoch as if near-duplicates did not count once."""
        result = assign.assign(clips, self.table, seed=self.spec.seed, epoch=epoch)
        if any(d.repeats % 1 for d in self.spec.datasets):
            chance = clip_uses.showings(self.rows, self.spec.datasets)[row] - self.uses.repeat
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
        if (latest := self._latest(epoch)) is not None:
            return latest, self.uses.row
        _, row, latest = self.assigned(epoch)
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
        result = self._once(assign.assign(clips, self.table, seed=self.spec.seed, epoch=0), clips, row, epoch=0)
        measured = (result.reason == Reason.HELD_OUT) & (clips.copy == 0)
        where = np.flatnonzero(measured & ~held_out.preserving(self.rows, self.spec)[row])
        where = where[np.argsort(hash64(self.spec.seed, clips.uid[where]), kind="stable")]
        return self._entries(clips, row, result, where[: self.spec.max_held_out]).wide()

    def each_clip(self) -> tuple[Samples, Mask]:
        """Return each clip that any epoch trains or validation uses once, whatever the draws; and which validation uses.

        Clips that preserve what the base says are left out: their losses are not of the clips.
        """
        clips, row = self.clips()
        every = replace(clips, held_out=np.ones_like(clips.held_out))  # those have no draws
        result = self._once(assign.assign(every, self.table, seed=self.spec.seed, epoch=0), clips, row, epoch=0)
        where = np.flatnonzero(np.isin(result.reason, (Reason.HELD_OUT, Reason.DUPLICATE_TURN)))
        where = where[(np.diff(row[where], prepend=-1) != 0) & ~held_out.preserving(self.rows, self.spec)[row[where]]]
        where = where[~clips.held_out[where] | np.isin(clips.uid[where], self.held_out().uid)]
        return self._entries(clips, row, result, where).wide(), clips.held_out[where]

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
    def measured_ms(self) -> dict[str, BatchTime]:
        """Times of micro-batches by bucket, as `cost.measured` lists them; those of a sequence group, if ranks share clips."""
        path, exchange = self.spec.cost.measured, self.spec.exchange
        measured = cost.read_measured(path, [b.name for b in self.table.buckets])
        if exchange is None or not cost.is_of_one_rank(path):
            return measured
        return degrees.on_groups(measured, self.table, exchange)

    @tells_arguments
    def plan_spec(self, micro_batches_per_step: int, same_bucket_run: int) -> PlanSpec:
        """Return everything that determines a plan, except the entries.

        Args:
            micro_batches_per_step: Micro-batches of an optimizer step, over all ranks.
            same_bucket_run: Number of micro-batches of one bucket that run at the same time.
        """
        names = [bucket.name for bucket in self.table.buckets]
        incomplete_batch = self.table.config.incomplete_batch
        costs_us, batch_costs_us = cost.costs_us(
            names, self.table.tokens(), self.spec.cost, self.measured_ms, self.table.recomputed_shares()
        )
        return PlanSpec(
            seed=self.spec.seed,
            micro_batches_per_step=micro_batches_per_step,
            same_bucket_run=same_bucket_run,
            incomplete_batch=incomplete_batch,
            batch_sizes=tuple(int(n) for n in self.table.column_sizes()),
            costs_us=costs_us,
            batch_costs_us=batch_costs_us,
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
        consumed = Excluded() if excluded is None else excluded
        return self.planned(spec, (data_restarts, epoch, segment), consumed).plan

    def planned(self, spec: PlanSpec, place: tuple[int, int, int], excluded: Excluded) -> Planned:
        """Return the plan at (data_restarts, epoch, segment), as `plan` does, and the clips that it leaves out."""
        epoch = place[1]
        # Plans that are kept in memory alone are of these rows.
        of = () if self.run is None else (self.rows, self.companion_rows)
        rows = [self.catalog.reader.identity_of(each) for each in of]
        key = digests.digest_json([rows, spec.digest(), epoch, excluded.digest()])
        return self._plans.get(self.run, place, key, lambda: self._make(spec, epoch, excluded))

    def _make(self, spec: PlanSpec, epoch: int, excluded: Excluded) -> Planned:
        clips, row, result = self.assigned(epoch, excluded)
        self._forget_uses()
        out = result.reason != Reason.NONE
        entries = self._entries_without_reason(clips, row, result)
        if spec.merge_to:
            at = blocks.indices(~out)
            may_merge = assign.may_take_merged(clips, at, np.array(spec.merge_to)[result.bucket[at]], self.table)
            entries = replace(entries, may_merge=may_merge)
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


def _require_scanned(spec: DataSpec, catalog: Catalog) -> None:
    """Refuse datasets whose clips no scan looked for, by whose names none would be found."""
    known = sorted({source["name"] for part in catalog.parts for source in part.sources})
    for dataset in spec.datasets if known else ():
        if dataset.dataset_name not in known:
            raise UserError(
                f"no dataset of this name is in the catalog, but {first_few(known)}",
                code="dataset-not-scanned",
                field="dataset.name",
                value=dataset.dataset_name,
                remedy="scan its folder into the catalog, or write the name that it was scanned with",
            )
