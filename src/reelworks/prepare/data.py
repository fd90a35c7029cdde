"""A recipe's data: catalog rows, bucket table and what each epoch makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets import assign, table
from reelworks.buckets.assign import Assignment, Clips, Reason
from reelworks.buckets.table import BucketTable
from reelworks.catalog import companions
from reelworks.catalog.companions import Found
from reelworks.catalog.rows import CatalogRows
from reelworks.catalog.source import Source
from reelworks.catalog.store import Catalog
from reelworks.core import digests
from reelworks.core.draws import Purpose, hash64, passes
from reelworks.core.shape import Geometry
from reelworks.media import sampling
from reelworks.models.config import geometry
from reelworks.prepare import auto, costs, exclusion, groups, plan_spec, quarantine, scores, showings, sources
from reelworks.prepare.auto import Chosen
from reelworks.prepare.kept_plans import KeptPlans, Planned, Unplanned
from reelworks.prepare.quarantine import Quarantine
from reelworks.recipe.recipe import Recipe
from reelworks.run.folder import RunFolder
from reelworks.schedule import cursor as cursors
from reelworks.schedule.cursor import Excluded
from reelworks.schedule.plan import Entries, EpochPlan, PlanSpec, plan

I64 = NDArray[np.int64]


@dataclass
class RecipeData:
    """The data of a recipe at one state of its catalog.

    Attributes:
        recipe: The recipe.
        catalog: The catalog at the version that is planned on.
        rows: Its live rows that belong to the recipe's datasets.
        companion_rows: Its live rows of their controls, sources and loss masks.
        digest: Digest of the catalog's state.
        geometry: What model and autoencoder do to shapes.
        table: The bucket table.
        run: The run folder whose processes share their plans, or None.
        chosen: How the bucket entries were found, where the recipe left them open; `recipe` then has them.
    """

    recipe: Recipe
    catalog: Catalog
    rows: CatalogRows
    companion_rows: CatalogRows
    digest: str
    geometry: Geometry
    table: BucketTable
    run: RunFolder | None = None
    chosen: Chosen | None = None
    _plans: KeptPlans = field(default_factory=KeptPlans)

    @classmethod
    def open(cls, recipe: Recipe, version: int | None = None) -> RecipeData:
        """Read the catalog, as it is or as it was when it had `version` parts, and compute the table.

        Raises:
            UserError: There is no catalog, the buckets do not fit the model, or a filter or caption of the
                newest version names a score that no clip of its dataset has.
        """
        shape_rules = geometry(recipe.model, recipe.autoencoder)
        catalog = Catalog.open(Path(recipe.catalog_folder), version)
        live = catalog.live()
        rows, beside = _of(live, sources.of(recipe)), _of(live, sources.of_companions(recipe))
        if version is None:  # what a former version lacks is no mistake of the recipe
            scores.require(recipe.dataset, rows)
        digest = digests.digest_json([rows.digest(), beside.digest()]) if len(beside) else rows.digest()
        opened = cls(recipe, catalog, rows, beside, digest, shape_rules, table.EMPTY)
        chosen = None
        if recipe.buckets.proposes:
            recipe, chosen = auto.choose(recipe, shape_rules, lambda: opened.clips()[0])
        extends_short = recipe.data.short_clips != "reject"
        buckets = table.build(recipe.bucket, recipe.buckets, shape_rules, extends_short=extends_short)
        return replace(opened, recipe=recipe, table=buckets, chosen=chosen)

    @classmethod
    def of_rows(cls, recipe: Recipe, catalog: Catalog, ordinals: I64) -> RecipeData:
        """Take some rows of a catalog as they were once, for a recipe whose buckets are chosen.

        Args:
            recipe: The recipe of then.
            catalog: The catalog at the version of then.
            ordinals: The rows, ascending.
        """
        shape_rules = geometry(recipe.model, recipe.autoencoder)
        companion_sources = sources.of_companions(recipe)
        rows = catalog.all_rows().take(ordinals)
        beside = _of(catalog.live(), companion_sources) if companion_sources else rows.take(ordinals[:0])
        extends_short = recipe.data.short_clips != "reject"
        buckets = table.build(recipe.bucket, recipe.buckets, shape_rules, extends_short=extends_short)
        return cls(recipe, catalog, rows, beside, rows.digest(), shape_rules, buckets)

    def rows_at(self, ordinals: I64) -> I64:
        """Places in `rows` of live clips by ordinal; of millions much faster than by uid."""
        return self._row_of_ordinal[ordinals]

    @cached_property
    def _row_of_ordinal(self) -> I64:
        rows = np.full(int(self.rows.ordinal.max(initial=-1)) + 1, -1, dtype=np.int64)
        rows[self.rows.ordinal] = np.arange(len(self.rows))
        return rows

    @cached_property
    def quarantine(self) -> Quarantine:
        """The recipe's list of clips not to train.

        Raises:
            UserError: Its file cannot be read.
        """
        return quarantine.read(self.recipe.quarantine)

    @cached_property
    def quarantined(self) -> NDArray[np.bool_]:
        """True for rows that the quarantine names."""
        return self.quarantine.rows(self.rows)

    @cached_property
    def companions(self) -> dict[str, Found]:
        """Companions of the rows by kind, for the kinds that some dataset has."""
        found = {}
        for kind in companions.KINDS:
            folders = {
                d.dataset_name: d.companions[kind] for d in self.recipe.dataset if kind in d.companions
            }
            if folders:
                found[kind] = companions.find(self.rows, self.companion_rows, kind, folders)
        return found

    @cached_property
    def excluded(self) -> NDArray[np.int8]:
        """Reason of each row that is known before shapes are looked at, or `Reason.NONE`."""
        return exclusion.reasons(
            self.rows,
            self.recipe.dataset,
            companions=self.companions.values(),
            quarantined=self.quarantined,
        )

    @cached_property
    def _showings(self) -> NDArray[np.float64]:
        """How often an epoch shows each row on average."""
        return showings.of_rows(self.rows, self.recipe.dataset)

    def clips(self) -> tuple[Clips, I64]:
        """What assignment looks at, and the row behind every element: repeats stand side by side.

        Raises:
            UserError: There are too many repeats.
        """
        row, copy = showings.copies(self._showings, self.recipe.dataset)
        r = self.rows
        apart = self.recipe.validation
        held = assign.held_out(self.recipe.seed, groups.of_rows(r, apart.group), apart.split)
        frames = sampling.frames_available(r.num_frames, np.maximum(r.fps, 1e-6), self.recipe.data)
        clips = Clips(
            uid=r.uid[row],
            copy=copy,
            num_frames=np.where(r.is_image, 1, frames)[row],
            height=r.height.astype(np.int64)[row],
            width=r.width.astype(np.int64)[row],
            is_image=r.is_image[row],
            excluded=self.excluded[row],
            held_out=held[row],
        )
        return clips, row

    def assigned(self, epoch: int) -> tuple[Clips, I64, Assignment]:
        """Every clip and copy of an epoch, the row behind each, and their assignment."""
        clips, row = self.clips()
        return clips, row, self._assign(clips, row, epoch)

    def assignment(self, epoch: int) -> tuple[Assignment, I64]:
        """Assignment of every clip and copy in an epoch, and the row behind each."""
        _, row, result = self.assigned(epoch)
        return result, row

    def _assign(self, clips: Clips, row: I64, epoch: int) -> Assignment:
        """Assign; of a dataset whose weight is no whole number, the last copy is only drawn."""
        result = assign.assign(clips, self.table, seed=self.recipe.seed, epoch=epoch)
        chance = self._showings[row] - clips.copy
        at = np.flatnonzero((chance < 1) & (result.reason == Reason.NONE))
        drawn = passes(
            hash64(self.recipe.seed, epoch, clips.uid[at], clips.copy[at], Purpose.SHARE), chance[at]
        )
        result.reason[at[~drawn]] = Reason.NOT_DRAWN
        return result

    def entries(self, epoch: int) -> Entries:
        """Clips that an epoch trains."""
        clips, row, result = self.assigned(epoch)
        return self._entries_without_reason(clips, row, result)

    def _entries_without_reason(self, clips: Clips, row: I64, result: Assignment) -> Entries:
        where = np.flatnonzero(result.reason == Reason.NONE)
        entries = self._entries(clips, row, result, where)
        by = self.recipe.data.locality
        return entries if by is None else replace(entries, group=groups.of_rows(self.rows, by)[row][where])

    def held_out(self) -> Entries:
        """Clips that validation looks at, one copy of each, in an order of their own."""
        clips, row = self.clips()
        result = assign.assign(clips, self.table, seed=self.recipe.seed, epoch=0)
        where = np.flatnonzero((result.reason == Reason.HELD_OUT) & (clips.copy == 0))
        where = where[np.argsort(hash64(self.recipe.seed, clips.uid[where]), kind="stable")]
        return self._entries(clips, row, result, where[: self.recipe.validation.max_clips])

    def _entries(self, clips: Clips, row: I64, result: Assignment, where: I64) -> Entries:
        ordinal, bucket = self.rows.ordinal[row[where]], result.bucket[where].astype(np.int64)
        return Entries(clips.uid[where], clips.copy[where], ordinal, bucket)

    @cached_property
    def measured_ms(self) -> dict[str, float]:
        """Milliseconds per clip by bucket, where `cost.measured` tells them."""
        return costs.read(self.recipe.cost.measured, [b.name for b in self.table.buckets])

    def spec(self, micro_batches_per_step: int, slot_width: int) -> PlanSpec:
        """All that shapes a plan besides the entries."""
        return plan_spec.of(
            self.recipe,
            self.table,
            micro_batches_per_step=micro_batches_per_step,
            slot_width=slot_width,
            quarantine=self.quarantine.digest(),
            measured_ms=self.measured_ms,
        )

    def plan(
        self,
        spec: PlanSpec,
        epoch: int,
        *,
        generation: int = 0,
        segment: int = 0,
        excluded: Excluded | None = None,
    ) -> EpochPlan:
        """Plan of an epoch; the last few are kept, since reading ahead and training share them.

        Args:
            spec: All that shapes it besides the entries.
            epoch: From 0.
            generation: Times that the data were restarted.
            segment: Stretch of the epoch, from 0.
            excluded: What earlier segments consumed.
        """
        return self.planned(spec, (generation, epoch, segment), excluded).plan

    def planned(self, spec: PlanSpec, place: tuple[int, int, int], excluded: Excluded | None) -> Planned:
        """Plan of an epoch as `plan` gives it, and the clips that it leaves out.

        Args:
            spec: All that shapes it besides the entries.
            place: Generation, epoch and segment.
            excluded: What earlier segments consumed.
        """
        consumed = Excluded.none() if excluded is None else excluded
        epoch = place[1]
        key = digests.digest_json([self.digest, spec.digest(), epoch, consumed.digest()])
        return self._plans.get(self.run, place, key, lambda: self._make(spec, epoch, consumed))

    def _make(self, spec: PlanSpec, epoch: int, excluded: Excluded) -> Planned:
        clips, row, result = self.assigned(epoch)
        ordinal = self.rows.ordinal[row]
        out = result.reason != Reason.NONE
        entries = self._entries_without_reason(clips, row, result)
        if excluded.bits.any():
            entries = cursors.remaining_after(entries, excluded, self.catalog.all_rows().uid)
            out |= excluded.holds(ordinal, clips.copy)
        others = Unplanned(ordinal[out], clips.copy[out], result.reason[out], result.nearest[out])
        del clips, row, result, ordinal, out  # of millions, they would lie beside the plan in its making
        return Planned(plan(entries, spec, epoch), others)


def _of(rows: CatalogRows, wanted: list[Source]) -> CatalogRows:
    """The rows of some datasets."""
    mine = rows.of_datasets([source.name for source in wanted])
    return rows if mine.all() else rows.take(mine)  # a copy of millions of rows takes gigabytes
