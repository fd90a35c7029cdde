"""View a catalog through the settings of a dataset: its rows, and what follows from them whatever the bucket table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core import blocks, digests
from reelworks.core.arrays import I64, U64, Integers, Mask
from reelworks.data.catalog.config import DatasetConfig, Source
from reelworks.data.catalog.sources import ALIGNED, KINDS, SOURCES
from reelworks.data.catalog.store import companions
from reelworks.data.catalog.store.companions import CompanionMatches
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import SCORE, as_numpy
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import clip_uses, duplicates, eligibility, exclude_file, held_out
from reelworks.data.loader.clip_uses import ClipUses
from reelworks.data.loader.data_spec import DataSpec
from reelworks.data.loader.exclude_file import ExcludeList
from reelworks.data.media import decode
from reelworks.data.media.frame_index import FrameIndex

_FEW = 1 << 16  # clips that are looked up one by one
_RATIOS = 1 << 9  # more than there are ratios of a source


class CatalogView:
    """The rows of a catalog that belong to a dataset, with all that is computed of them, once each.

    Attributes:
        catalog: The catalog, at one version.
        spec: Settings of the dataset.
        rows: Live rows of the catalog that belong to the spec's datasets.
        companion_rows: Live rows of the controls, edit sources and loss masks of these clips.
    """

    def __init__(self, catalog: Catalog, spec: DataSpec, rows: CatalogRows, companion_rows: CatalogRows) -> None:
        self.catalog, self.spec, self.rows, self.companion_rows = catalog, spec, rows, companion_rows

    def metadata(self, uids: U64) -> list[dict[str, Any]]:
        """Return the catalog's columns of clips by uid, as `MicroBatch.metadata` describes them."""
        at, place = np.unique(self.rows.find(uids), return_inverse=True)
        found = self.rows.take(at).to_table().to_pylist()
        for row in found:
            scores = {name.removeprefix(SCORE): row.pop(name) for name in list(row) if name.startswith(SCORE)}
            row["scores"] = {name: score for name, score in scores.items() if score is not None}
        return [dict(found[i]) for i in place.tolist()]

    @cached_property
    def digest(self) -> str:
        """Digest of the catalog's state; for millions of clips it reads the catalog for many seconds, once."""
        both = [self.catalog.digest_of(rows) for rows in (self.rows, self.companion_rows)]
        return digests.digest_json(both) if len(self.companion_rows) else both[0]

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
        return exclude_file.read_list(self.spec.exclude_file)

    @cached_property
    def in_exclude_file(self) -> Mask:
        """True for rows that the exclude list names."""
        return self.exclude_list.rows(self.rows)

    @cached_property
    def companions(self) -> dict[str, CompanionMatches]:
        """Companions of the rows by kind, for the kinds that at least one dataset uses."""
        by_kind = {}
        for kind in KINDS:
            folders = {d.dataset_name: d.companions[kind] for d in self.spec.datasets if kind in d.companions}
            if folders:
                whole = kind in SOURCES and self.spec.whole_sources
                own_sizes = whole or (kind in SOURCES and self.spec.source_multiple is not None)
                sounds = kind in SOURCES and self.spec.source_sounds
                of = (self.rows, self.companion_rows, kind, folders)
                found = companions.find(*of, own_sizes=own_sizes, sounds=sounds)
                by_kind[kind] = replace(found, ratio=np.full_like(found.ratio, ALIGNED)) if whole else found
        least = {d.dataset_name: d.min_sources for d in self.spec.datasets if d.min_sources is not None}
        sources = [found for kind, found in by_kind.items() if kind in SOURCES]
        companions.excuse(self.rows, sources, least)
        companions.require_shown(sources)
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
            if self.spec.picture_side is not None:
                layout = 2 * layout + (found.rows.is_image[found.row] if len(found.rows) else 0)
            layout = np.unique(layout, return_inverse=True)[1]  # small, so that no product overflows
            if (lengths := self._sound_lengths(found)) is not None:
                layout = np.unique(layout * (lengths.max(initial=0) + 1) + lengths, return_inverse=True)[1]
        return None if (layout == layout[:1]).all() else layout

    def _sound_lengths(self, sources: CompanionMatches) -> I64 | None:
        """Return a number for the length of the sound of each row's source, 0 without one; None if none is read.

        A clip's own (1), and a sound alone that is not shorter than the clip beside it (2), end with what is trained.
        """
        spec, rows = self.spec.sound, sources.rows
        if spec is None or not self.spec.source_sounds or not len(rows):
            return None
        seconds = rows.duration_seconds[sources.row]
        latents = np.ceil(seconds * spec.latents_per_second).astype(np.int64)
        alone = np.where(seconds * spec.frame_rate >= self.frames, 2, 2 + latents)
        lengths = np.where(rows.is_sound[sources.row], alone, 1)
        return np.where((sources.row < 0) | ~rows.has_sound[sources.row], 0, lengths)

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
        return duplicates.groups(self.rows, self.spec.datasets, duplicates.numbering_lists(self.catalog))

    @cached_property
    def is_held_out(self) -> Mask:
        """True for rows that are held out, which takes all fingerprints to compute."""
        return held_out.held_out(self.rows, self.spec, duplicates.numbering_lists(self.catalog))

    @cached_property
    def uses(self) -> ClipUses:
        """Uses of the rows that an epoch may have."""
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
