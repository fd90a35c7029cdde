"""Open the dataset that a recipe describes; with `buckets = "auto"`, bucket entries are proposed from its clips."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import annexes, trust, units
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.core.shape import Geometry
from reelworks.core.words import of_recipe
from reelworks.data.buckets import propose, table
from reelworks.data.buckets.assign import Reason
from reelworks.data.buckets.propose import Suggestion
from reelworks.data.buckets.table import BucketTable
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import ScanProgress, ScanResult, scan_sources
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import duplicates, required_columns
from reelworks.data.loader.catalog_view import companion_sources, rows_of
from reelworks.data.loader.data_spec import DataSpec
from reelworks.data.loader.dataset import Dataset
from reelworks.data.media.config import OF_RECIPES, DataConfig
from reelworks.data.media.sound import SoundSpec
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule.cursor import RUN_START, StageStart
from reelworks.models import components
from reelworks.training.recipe import measured, recipe_file
from reelworks.training.recipe.recipe import Recipe

MEASURES = "data.measures"
_FAILURES_TOLD = 20
_tell = lru_cache(logger.info)  # once for footage that stays: stages scan the same, and the page scans again and again
_AGAIN = "--set buckets.entries=refresh proposes new ones from the present catalog"


@dataclass(frozen=True)
class ChosenBuckets:
    """Bucket entries that were chosen for a recipe, and `lines` about them for people; `kept` if the run has them."""

    kept: bool
    lines: list[str]
    entries: tuple[Suggestion, ...]


@dataclass(frozen=True)
class ProposedBuckets(ChosenBuckets):
    """Bucket entries of a `Proposal`."""

    reached: int
    clips: int
    max_tokens: int
    toml: str


@dataclass(init=False, repr=False)
class RecipeData(Dataset):
    """A recipe's dataset."""

    recipe: Recipe  # with its bucket entries chosen
    chosen: ChosenBuckets | None  # how the bucket entries were chosen; None if the recipe has its own
    stage: StageStart  # where the stage began whose recipe it is

    def __init__(
        self,
        *args: Any,
        recipe: Recipe,
        chosen: ChosenBuckets | None = None,
        stage: StageStart = RUN_START,
        **others: Any,
    ) -> None:
        super().__init__(*args, **others)  # which checks the arguments of every dataset
        self.recipe, self.chosen, self.stage = recipe, chosen, stage

    @classmethod
    @of_recipe()
    def open(cls, recipe: Recipe, version: int | None = None) -> RecipeData:
        """Read the newest catalog, or the given version of it, and compute the bucket table.

        Refuses a filter or caption that names a score which no clip of its dataset has in the newest version.
        """
        catalog = Catalog.open(Path(recipe.catalog_folder), version)
        opened = cls(catalog, table.EMPTY, _spec(recipe), recipe=recipe)
        if version is None:  # scores that an earlier version lacks are not a mistake in the recipe
            required_columns.require_scores(recipe.dataset, opened.rows, catalog)
            required_columns.require_duplicates(recipe.dataset, opened.rows, catalog)
        if recipe.buckets.proposes:
            recipe, chosen = opened._choose_entries()
            opened = replace(opened, recipe=recipe, chosen=chosen)
        recipe = measured.with_numbers(recipe)
        return replace(opened, recipe=recipe, table=_table(recipe))

    @classmethod
    @of_recipe()
    def of_rows(cls, recipe: Recipe, catalog: Catalog, ordinals: NDArray[np.int64]) -> RecipeData:
        """Make the dataset of some rows, by ascending ordinal, of an earlier catalog version and its recipe."""
        spec, rows = _spec(recipe), catalog.rows_at(ordinals)
        sources = companion_sources(spec.datasets)
        companions = rows_of(catalog.live(), sources) if sources else rows.take(ordinals[:0])
        return cls(catalog, _table(recipe), spec, rows, companions, recipe=recipe)

    def with_buckets(self, recipe: Recipe) -> RecipeData:
        """Return the dataset of a recipe that differs in `[[bucket]]`, `[buckets]` and `[train]` alone, without reading.

        A recipe that has its entries proposed keeps the present ones.
        """
        if recipe.buckets.proposes:
            kept = recipe.buckets.model_copy(update={"entries": "keep"})
            recipe = recipe.model_copy(update={"bucket": self.recipe.bucket, "buckets": kept})
        recipe = measured.with_numbers(recipe)
        other = self.with_table(_table(recipe))
        other.recipe = recipe
        return other

    @property
    def geometry(self) -> Geometry:
        """Geometry of the recipe's model and autoencoder."""
        return components.geometry(self.recipe.model, self.recipe.autoencoder)

    def _choose_entries(self) -> tuple[Recipe, ChosenBuckets]:
        """Return the recipe with the bucket entries of its run, or else with proposed ones."""
        recipe, stored = self.recipe, _stored_entries(self.recipe)
        if stored is None:
            chosen: ChosenBuckets = self._propose()
        else:
            head = f"buckets: using the {units.plural(len(stored), 'entry')} stored in {recipe.output}/recipe.toml; {_AGAIN}"
            chosen = ChosenBuckets(True, _lines(head, stored), stored)
        update = {
            "bucket": [entry.config() for entry in chosen.entries],
            "buckets": recipe.buckets.model_copy(update={"entries": "keep"}),
        }
        return recipe.model_copy(update=update), chosen

    def _propose(self) -> ProposedBuckets:
        clips, row = self.clips()
        if self.duplicate_groups is not None:
            clips = duplicates.one_of_each(self.duplicate_groups, clips, row)
        found = propose.propose(clips, self.recipe.buckets, self.geometry)
        if not found.reached:
            reasons, counts = np.unique(clips.excluded, return_counts=True)
            names = ["smaller than any bucket" if r == Reason.NONE else Reason(r).label for r in reasons.tolist()]
            listed = ", ".join(f"{n} {name}" for name, n in zip(names, counts.tolist(), strict=True))
            raise UserError(
                f"there is no clip to propose bucket entries for ({listed or 'the datasets are empty'})",
                code="no-clip-to-propose-from",
                field="buckets",
                value="auto",
                remedy="repair the clips, or choose other datasets or a smaller autoencoder.stride",
            )
        head = f"buckets: {units.plural(len(found.entries), 'entry')} proposed, which the run will store; {found.headline()}"
        lines = _lines(head, found.entries)
        return ProposedBuckets(False, lines, found.entries, found.reached, found.clips, found.max_tokens, found.toml)


def _lines(head: str, entries: Iterable[Suggestion]) -> list[str]:
    return [head, *(f"  {entry.to_text()}" for entry in entries)]


def bucket_table(recipe: Recipe, on_scan: Callable[[ScanProgress], None] | None = None) -> tuple[Recipe, BucketTable]:
    """Return a recipe with its entries, and their table; scan the data only if entries have to be proposed from them."""
    if recipe.buckets.proposes:
        scan_recipe(recipe, on_scan)
        data = RecipeData.open(recipe)
        return data.recipe, data.table
    recipe = measured.with_numbers(recipe)
    return recipe, _table(recipe)


def _table(recipe: Recipe) -> BucketTable:
    built = table.build(recipe.bucket, recipe.buckets, components.geometry(recipe.model, recipe.autoencoder))
    return built.with_short_clips(recipe.data.short_clips).shared_by(recipe.parallel.group_size)


def _spec(recipe: Recipe) -> DataSpec:
    datasets, held_out = tuple(recipe.dataset), recipe.validation
    split = (held_out.split, held_out.group, held_out.max_clips)
    variants = recipe.encode.variants if recipe.encode.store else None
    multiple = components.source_multiple(recipe.model, recipe.autoencoder)
    limits = (*split, recipe.exclude_file, recipe.cost, variants, multiple)
    wants = components.conditioning(recipe.model)
    return DataSpec(
        datasets,
        recipe.seed,
        DataConfig.model_validate(recipe.data.model_dump(exclude=OF_RECIPES)),
        *limits,
        picture_side=wants.companions.picture_side,
        whole_sources=wants.companions.sources_as_frames,
        sound=sound_spec(recipe),
        source_sounds=wants.companions.sounds,
        exchange=measured.exchange(recipe),
        mask_ratios=recipe.objective.mask_ratios if wants.companions.control_parts else {},
    )


def sound_spec(recipe: Recipe) -> SoundSpec | None:
    """Return how the sound of a recipe's clips is read; None if it is not."""
    sound, rate = recipe.sound, recipe.data.frame_rate
    if sound is None:
        return None
    assert rate is not None, "the recipe was checked"
    facts = components.sound_facts(sound)
    return SoundSpec(facts.sample_rate, facts.channels, facts.samples_per_latent, rate, sound.missing)


def _stored_entries(recipe: Recipe) -> tuple[Suggestion, ...] | None:
    """Return the entries in the run's recipe; None without a run, or if new entries or limits are requested."""
    file = RunFolder(Path(recipe.output)).recipe_file
    if recipe.buckets.entries == "refresh" or not file.exists():
        return None
    stored = recipe_file.load(file)
    stored_limits, limits = ((b.max_tokens, b.max_batch_size) for b in (stored.buckets, recipe.buckets))
    if stored.buckets.entries != "keep" or stored_limits != limits:
        return None
    return tuple(
        # Batch sizes of runs are numbers.
        Suggestion(entry.resolution, frames, int(batch_size or stored.buckets.batch_size), keep_prob)
        for entry in stored.bucket
        for frames, batch_size, keep_prob in zip(entry.frames(), entry.batch_sizes(), entry.keep_probs(), strict=True)
    )


def sources(recipe: Recipe) -> list[Source]:
    """Return the folders and lists of a recipe's clips, and of what belongs to them."""
    return [d.place for d in recipe.dataset] + companion_sources(recipe.dataset)


def scan_recipe(
    recipe: Recipe, on_progress: Callable[[ScanProgress], None] | None = None, engine: str = "local"
) -> ScanResult:
    """Bring the recipe's catalog up to date, and apply the recipe's measures; unchanged files are not opened.

    Logs the notes of the scan, again once files have changed, and warns of clips that a filter, a caption or `duplicates` needs measured,
    and that were not.
    """
    trust.require(recipe.data.measures, MEASURES)
    folder = Path(recipe.catalog_folder)
    scanned = scan_sources(sources(recipe), folder, on_progress=on_progress, engine=engine)
    if scanned.new or scanned.changed or scanned.removed:
        _tell.cache_clear()
    for note in scanned.notes:
        _tell(note)
    if not recipe.data.measures:
        required_columns.warn(recipe.dataset, Catalog.open(folder))
        return scanned

    def tell_measured(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(ScanProgress(done, total, ("measuring", "clips")))

    columns = annexes.measuring()(
        folder, recipe.data.measures, field=MEASURES, on_progress=tell_measured, engine=engine
    )
    required_columns.warn(recipe.dataset, Catalog.open(folder), told={column.name for column in columns.columns})
    failed = tuple(f"not measured: {clip}: {reason}" for clip, reason in columns.failed[:_FAILURES_TOLD])
    for note in (*columns.notes, *failed):
        _tell(note)
    return replace(scanned, version=columns.version, notes=(*scanned.notes, *columns.notes, *failed))
