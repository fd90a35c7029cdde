"""A recipe's data: catalog rows, bucket table and what each epoch makes of them."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.buckets import assign, merge, table
from reelworks.buckets.assign import Assignment, Clips, Reason
from reelworks.buckets.table import BucketTable
from reelworks.catalog import filters
from reelworks.catalog import scan as scanning
from reelworks.catalog.rows import CatalogRows
from reelworks.catalog.scan import ScanProgress, ScanResult, Source
from reelworks.catalog.store import Catalog
from reelworks.core import digests
from reelworks.core.draws import hash64, hash_int
from reelworks.core.shape import Geometry
from reelworks.media import sampling
from reelworks.models.config import geometry
from reelworks.prepare import quarantine
from reelworks.prepare.quarantine import Quarantine
from reelworks.recipe.recipe import Recipe
from reelworks.schedule.plan import Entries, EpochPlan, PlanSpec, plan

_PLANS_KEPT = 3


def sources(recipe: Recipe) -> list[Source]:
    """Folders that the recipe's datasets name."""
    return [Source(d.dataset_name, Path(d.path)) for d in recipe.dataset]


def scan(recipe: Recipe, on_progress: Callable[[ScanProgress], None] | None = None) -> ScanResult:
    """Bring the recipe's catalog up to date; unchanged files are not opened.

    Raises:
        UserError: A folder is missing or empty, or the catalog cannot be written.
    """
    workers = os.cpu_count() or 1
    return scanning.scan(
        sources(recipe), Path(recipe.catalog_folder), workers=workers, on_progress=on_progress
    )


@dataclass
class RecipeData:
    """The data of a recipe at one state of its catalog.

    Attributes:
        recipe: The recipe.
        catalog: The catalog at the version that is planned on.
        rows: Its live rows that belong to the recipe's datasets.
        digest: Digest of the catalog's state.
        geometry: What model and autoencoder do to shapes.
        table: The bucket table.
    """

    recipe: Recipe
    catalog: Catalog
    rows: CatalogRows
    digest: str
    geometry: Geometry
    table: BucketTable
    _plans: OrderedDict[tuple[int, str], EpochPlan] = field(default_factory=OrderedDict)

    @classmethod
    def open(cls, recipe: Recipe, version: int | None = None) -> RecipeData:
        """Read the catalog, as it is or as it was when it had `version` parts, and compute the table.

        Raises:
            UserError: There is no catalog, or the buckets do not fit the model.
        """
        shape_rules = geometry(recipe.model, recipe.autoencoder)
        buckets = table.build(recipe.bucket, recipe.buckets, shape_rules)
        catalog = Catalog.open(Path(recipe.catalog_folder), version)
        rows = catalog.live()
        names = [source.name for source in sources(recipe)]
        rows = rows.take(_mask(pc.is_in(rows.dataset.cast(pa.string()), value_set=pa.array(names))))
        return cls(recipe, catalog, rows, rows.digest(), shape_rules, buckets)

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
    def excluded(self) -> NDArray[np.int8]:
        """Reason of each row that is known before shapes are looked at, or `Reason.NONE`."""
        excluded = np.full(len(self.rows), Reason.NONE, dtype=np.int8)
        for text in {d.filter for d in self.recipe.dataset if d.filter is not None}:
            names = [d.dataset_name for d in self.recipe.dataset if d.filter == text]
            its = _mask(pc.is_in(self.rows.dataset.cast(pa.string()), value_set=pa.array(names)))
            excluded[its & ~filters.keeps(self.rows, text)] = Reason.FILTERED
        excluded[~self.captioned] = Reason.NO_CAPTION
        excluded[self.quarantined] = Reason.QUARANTINED
        excluded[~self.rows.readable] = Reason.UNREADABLE
        return excluded

    def _groups(self) -> NDArray[np.uint64]:
        """A number for what is held out together; a file that is its own group is known by its uid."""
        if self.recipe.validation.group == "folder":
            return _folders(self.rows)
        own = _mask(pc.equal(self.rows.group, self.rows.path))
        groups = self.rows.uid.copy()
        shared = np.flatnonzero(~own)
        groups[shared] = [hash_int(self.rows.group[int(i)].as_py()) for i in shared]
        return groups

    def clips(self) -> tuple[Clips, NDArray[np.int64]]:
        """What assignment looks at, and the row behind every element: repeats stand side by side."""
        repeats = {s.name: d.repeats for s, d in zip(sources(self.recipe), self.recipe.dataset, strict=True)}
        names, code = np.unique(_texts(self.rows.dataset), return_inverse=True)
        times = np.array([repeats[str(name)] for name in names], dtype=np.int64)[code]
        row = np.repeat(np.arange(len(times)), times)
        copy = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
        r = self.rows
        held = assign.held_out(self.recipe.seed, self._groups(), self.recipe.validation.split)
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
        return assign.assign(clips, self.table, seed=self.recipe.seed, epoch=epoch), row

    def entries(self, epoch: int) -> Entries:
        """Clips that an epoch trains."""
        clips, row = self.clips()
        result = assign.assign(clips, self.table, seed=self.recipe.seed, epoch=epoch)
        where = result.reason == Reason.NONE
        return Entries(
            clips.uid[where],
            clips.copy[where],
            self.rows.ordinal[row][where],
            result.bucket[where].astype(np.int64),
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

    def spec(self, micro_batches_per_step: int, slot_width: int) -> PlanSpec:
        """All that shapes a plan besides the entries."""
        buckets = [[b.name, *b.shape.__dict__.values(), b.batch_size] for b in self.table.buckets]
        r = self.recipe
        shaping = [buckets, r.buckets.model_dump(), [e.model_dump() for e in r.bucket], r.validation.split]
        shaping += [r.data.frame_interval, r.data.fps, [d.model_dump(exclude={"path"}) for d in r.dataset]]
        shaping += [r.validation.group, self.quarantine.digest()]
        merges = r.buckets.incomplete_batch == "merge"
        return PlanSpec(
            seed=r.seed,
            micro_batches_per_step=micro_batches_per_step,
            slot_width=slot_width,
            incomplete_batch=r.buckets.incomplete_batch,
            batch_sizes=tuple(int(n) for n in self.table.batch_sizes()),
            # Without measurements a token costs a microsecond: only ratios order anything.
            costs_us=tuple(int(n) for n in self.table.tokens()),
            buckets_digest=digests.digest_json(shaping),
            merge_to=tuple(int(n) for n in merge.targets(self.table)) if merges else (),
        )

    def plan(self, spec: PlanSpec, epoch: int) -> EpochPlan:
        """Plan of a whole epoch; the last few are kept, since reading ahead and training share them."""
        key = (epoch, spec.digest())
        if key not in self._plans:
            self._plans[key] = plan(self.entries(epoch), spec, epoch)
            while len(self._plans) > _PLANS_KEPT:
                self._plans.popitem(last=False)
        return self._plans[key]


def _mask(column: Any) -> NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _folders(rows: CatalogRows) -> NDArray[np.uint64]:
    """A number for the dataset and folder of each row; clips right in a dataset's folder share one."""
    folder = pc.replace_substring_regex(rows.path, pattern=r"/?[^/]*$", replacement="").dictionary_encode()
    return hash64(_hashes(rows.dataset), _hashes(folder))


def _hashes(words: Any) -> NDArray[np.uint64]:
    """Hash a dictionary-encoded column: each word once."""
    of_word = np.array([hash_int(word) for word in words.dictionary.to_pylist()], dtype=np.uint64)
    hashes: NDArray[np.uint64] = of_word[words.indices.to_numpy(zero_copy_only=False)]
    return hashes


def _texts(column: Any) -> NDArray[np.str_]:
    return np.asarray(column.to_pylist(), dtype=np.str_)
