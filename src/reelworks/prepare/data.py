"""A recipe's data: catalog rows, bucket table and what each epoch makes of them."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.buckets import assign, merge, table
from reelworks.buckets.assign import Assignment, Clips, Reason
from reelworks.buckets.table import BucketTable
from reelworks.catalog import companions, filters
from reelworks.catalog import scan as scanning
from reelworks.catalog.companions import Found, Problem
from reelworks.catalog.rows import CatalogRows
from reelworks.catalog.scan import ScanProgress, ScanResult
from reelworks.catalog.source import Source
from reelworks.catalog.store import Catalog
from reelworks.core import digests
from reelworks.core.draws import Purpose, hash64, passes, text_words
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry
from reelworks.media import sampling
from reelworks.models.config import geometry
from reelworks.prepare import auto, costs, quarantine, scores
from reelworks.prepare.auto import Chosen
from reelworks.prepare.quarantine import Quarantine
from reelworks.recipe.recipe import Recipe
from reelworks.run import plans
from reelworks.run.folder import RunFolder
from reelworks.schedule import cost
from reelworks.schedule import cursor as cursors
from reelworks.schedule.cursor import Excluded
from reelworks.schedule.plan import Entries, EpochPlan, PlanSpec, plan

_PLANS_KEPT = 3
_MOST_SHOWINGS = 1 << 30  # more would not fit into memory


def sources(recipe: Recipe) -> list[Source]:
    """Folders and lists that the recipe's datasets name."""
    return [d.place for d in recipe.dataset]


def companion_sources(recipe: Recipe) -> list[Source]:
    """Folders of companions that they name.

    Raises:
        UserError: One lies in the folder of its clips.
    """
    return [s for d in recipe.dataset for s in companions.sources(d.place, d.companions)]


def scan(recipe: Recipe, on_progress: Callable[[ScanProgress], None] | None = None) -> ScanResult:
    """Bring the recipe's catalog up to date; unchanged files are not opened.

    Raises:
        UserError: A folder is missing or empty, a list is wrong, or the catalog cannot be written.
    """
    every = sources(recipe) + companion_sources(recipe)
    workers = os.cpu_count() or 1
    return scanning.scan(every, Path(recipe.catalog_folder), workers=workers, on_progress=on_progress)


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
    _plans: OrderedDict[str, EpochPlan] = field(default_factory=OrderedDict)

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
        rows, beside = _of(live, sources(recipe)), _of(live, companion_sources(recipe))
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

    def rows_at(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in `rows` of live clips by ordinal; of millions much faster than by uid."""
        return self._row_of_ordinal[ordinals]

    @cached_property
    def _row_of_ordinal(self) -> NDArray[np.int64]:
        rows = np.full(int(self.rows.ordinal.max(initial=-1)) + 1, -1, dtype=np.int64)
        rows[self.rows.ordinal] = np.arange(len(self.rows))
        return rows

    @cached_property
    def is_image(self) -> NDArray[np.bool_]:
        """True for the rows of pictures."""
        return _mask(pc.equal(self.rows.kind.cast(pa.string()), "image"))

    @cached_property
    def captioned(self) -> NDArray[np.bool_]:
        """True for rows with a caption that says something."""
        return _mask(pc.greater(pc.binary_length(self.rows.caption.fill_null("")), 0))

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
        excluded = np.full(len(self.rows), Reason.NONE, dtype=np.int8)
        for text in {d.filter for d in self.recipe.dataset if d.filter is not None}:
            names = [d.dataset_name for d in self.recipe.dataset if d.filter == text]
            its = _mask(pc.is_in(self.rows.dataset.cast(pa.string()), value_set=pa.array(names)))
            excluded[its & ~filters.keeps(self.rows, text)] = Reason.FILTERED
        for found in self.companions.values():
            excluded[found.problem != Problem.NONE] = Reason.NO_COMPANION
        named = [d.dataset_name for d in self.recipe.dataset if d.missing_caption is not None]
        filled = _mask(pc.is_in(self.rows.dataset.cast(pa.string()), value_set=pa.array(named, pa.string())))
        excluded[~self.captioned & ~filled] = Reason.NO_CAPTION
        excluded[self.quarantined] = Reason.QUARANTINED
        excluded[~self.rows.readable] = Reason.UNREADABLE
        return excluded

    def _groups(self, by: Literal["file", "folder"]) -> NDArray[np.uint64]:
        """A number for what belongs together; a file that is its own group is known by its uid."""
        if by == "folder":
            return _folders(self.rows)
        own = _mask(pc.equal(self.rows.group, self.rows.path))
        groups = self.rows.uid.copy()
        shared = np.flatnonzero(~own)
        groups[shared] = _hashes(self.rows.group.take(pa.array(shared)).dictionary_encode())
        return groups

    @cached_property
    def _showings(self) -> NDArray[np.float64]:
        """How often an epoch shows each row on average."""
        of = {d.dataset_name: round(d.repeats * d.weight, 9) for d in self.recipe.dataset}
        names = self.rows.dataset.dictionary.to_pylist()  # it may hold datasets that no row is of
        shown: NDArray[np.float64] = np.array([of.get(name, 0) for name in names], dtype=np.float64)[
            self.rows.dataset.indices.to_numpy(zero_copy_only=False)
        ]
        return shown

    def clips(self) -> tuple[Clips, NDArray[np.int64]]:
        """What assignment looks at, and the row behind every element: repeats stand side by side.

        Raises:
            UserError: There are too many repeats.
        """
        times = np.ceil(self._showings).astype(np.int64)
        if (showings := int(times.sum())) > _MOST_SHOWINGS:
            raise UserError(
                f"an epoch would have {showings} showings of {len(times)} clips",
                field="dataset.repeats",
                value=[d.repeats * d.weight for d in self.recipe.dataset],
                remedy="lower repeats, or weight, which multiplies it",
            )
        row = np.repeat(np.arange(len(times)), times)
        copy = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
        r = self.rows
        held = assign.held_out(
            self.recipe.seed, self._groups(self.recipe.validation.group), self.recipe.validation.split
        )
        frames = sampling.frames_available(r.num_frames, np.maximum(r.fps, 1e-6), self.recipe.data)
        clips = Clips(
            uid=r.uid[row],
            copy=copy,
            num_frames=np.where(self.is_image, 1, frames)[row],
            height=r.height.astype(np.int64)[row],
            width=r.width.astype(np.int64)[row],
            is_image=self.is_image[row],
            excluded=self.excluded[row],
            held_out=held[row],
        )
        return clips, row

    def assignment(self, epoch: int) -> tuple[Assignment, NDArray[np.int64]]:
        """Assignment of every clip and copy in an epoch, and the row behind each."""
        clips, row = self.clips()
        return self._assign(clips, row, epoch), row

    def _assign(self, clips: Clips, row: NDArray[np.int64], epoch: int) -> Assignment:
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
        clips, row = self.clips()
        result = self._assign(clips, row, epoch)
        where = result.reason == Reason.NONE
        by = self.recipe.data.locality
        return Entries(
            clips.uid[where],
            clips.copy[where],
            self.rows.ordinal[row][where],
            result.bucket[where].astype(np.int64),
            None if by is None else self._groups(by)[row][where],
        )

    def held_out(self) -> Entries:
        """Clips that validation looks at, one copy of each, in an order of their own."""
        clips, row = self.clips()
        result = assign.assign(clips, self.table, seed=self.recipe.seed, epoch=0)
        where = np.flatnonzero((result.reason == Reason.HELD_OUT) & (clips.copy == 0))
        where = where[np.argsort(hash64(self.recipe.seed, clips.uid[where]), kind="stable")]
        where = where[: self.recipe.validation.max_clips]
        return Entries(
            clips.uid[where],
            clips.copy[where],
            self.rows.ordinal[row][where],
            result.bucket[where].astype(np.int64),
        )

    @cached_property
    def _measured_ms(self) -> dict[str, float]:
        return costs.read(self.recipe.cost.measured, [b.name for b in self.table.buckets])

    def spec(self, micro_batches_per_step: int, slot_width: int) -> PlanSpec:
        """All that shapes a plan besides the entries."""
        buckets = [[b.name, *b.shape.__dict__.values(), b.batch_size] for b in self.table.buckets]
        r = self.recipe
        how_found = {"entries", "max_tokens", "max_batch_size"}  # what they found counts
        shaping: list[Any] = [
            buckets,
            r.buckets.model_dump(exclude=how_found),
            [e.model_dump() for e in r.bucket],
        ]
        shaping += [
            r.data.frame_interval,
            r.data.fps,
            # What companions leave out, the catalog's digest tells.
            [d.model_dump(exclude={"path", "root", "caption", *companions.KINDS}) for d in r.dataset],
        ]
        shaping += [
            r.data.short_clips,
            r.validation.split,
            r.validation.group,
            r.data.locality,
            self.quarantine.digest(),
        ]
        merges = r.buckets.incomplete_batch == "merge"
        return PlanSpec(
            seed=r.seed,
            micro_batches_per_step=micro_batches_per_step,
            slot_width=slot_width,
            incomplete_batch=r.buckets.incomplete_batch,
            batch_sizes=tuple(int(n) for n in self.table.batch_sizes()),
            costs_us=cost.costs_us(
                [b.name for b in self.table.buckets], self.table.tokens(), r.cost, self._measured_ms
            ),
            buckets_digest=digests.digest_json(shaping),
            merge_to=tuple(int(n) for n in merge.targets(self.table)) if merges else (),
            window_clips=r.data.locality_clips if r.data.locality else 0,
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
        consumed = Excluded.none() if excluded is None else excluded
        key = digests.digest_json([self.digest, spec.digest(), epoch, consumed.digest()])
        if key not in self._plans:
            self._plans[key] = self._plan(spec, key, (generation, epoch, segment), consumed)
            while len(self._plans) > _PLANS_KEPT:
                self._plans.popitem(last=False)
        return self._plans[key]

    def _plan(self, spec: PlanSpec, key: str, place: tuple[int, int, int], excluded: Excluded) -> EpochPlan:
        if self.run is None:
            return self._make(spec, place[1], excluded)
        try:
            return EpochPlan(
                **plans.shared(self.run, *place, key, lambda: self._make(spec, place[1], excluded).arrays())
            )
        except OSError:  # a full disk ends no training; where plans are kept it is told
            return self._make(spec, place[1], excluded)

    def _make(self, spec: PlanSpec, epoch: int, excluded: Excluded) -> EpochPlan:
        entries = self.entries(epoch)
        if excluded.bits.any():
            entries = cursors.remaining_after(entries, excluded, self.catalog.all_rows().uid)
        return plan(entries, spec, epoch)


def _of(rows: CatalogRows, wanted: list[Source]) -> CatalogRows:
    """The rows of some datasets."""
    mine = rows.of_datasets([source.name for source in wanted])
    return rows if mine.all() else rows.take(mine)  # a copy of millions of rows takes gigabytes


def _mask(column: Any) -> NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _folders(rows: CatalogRows) -> NDArray[np.uint64]:
    """A number for the dataset and folder of each row; clips right in a dataset's folder share one."""
    folder = pc.replace_substring_regex(rows.path, pattern=r"/?[^/]*$", replacement="").dictionary_encode()
    return hash64(_hashes(rows.dataset), _hashes(folder))


def _hashes(words: Any) -> NDArray[np.uint64]:
    """Hash a dictionary-encoded column: each word once, as `hash_int` does."""
    of_word = hash64(text_words(words.dictionary.to_pylist()))
    hashes: NDArray[np.uint64] = of_word[words.indices.to_numpy(zero_copy_only=False)]
    return hashes
