"""Refuse recipes that need columns which clips do not have, and warn of clips that were not measured.

Clips that were never measured are told from those that have no value, as pictures have no motion, by what is kept of their
content. It is asked only about clips without a value, and not at all if the catalog is as `reelworks measure` left it. Where
nothing is kept any more, clips count as measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property

import numpy as np

from reelworks.core import system
from reelworks.core.arrays import Mask
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.catalog import filter_expression
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.filter_expression import NUMBERS
from reelworks.data.catalog.query import filters, template
from reelworks.data.catalog.store import kept_measures, measured_columns, part_files
from reelworks.data.catalog.store.kept_measures import KeptMeasures, WrittenColumn
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader.duplicates import GROUP, RANK


def _in_filter(dataset: DatasetConfig) -> set[str]:
    return filters.scores_named(dataset.filter) if dataset.filter else set()


def scores_of(dataset: DatasetConfig) -> set[str]:
    """Return the names of scores in the filter and the caption of a dataset."""
    return _in_filter(dataset) | (template.names(dataset.caption) - set(NUMBERS))


class MeasuredColumns:
    """The measured columns of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @cached_property
    def written(self) -> Mapping[str, WrittenColumn]:
        """Columns by name, as they were written last."""
        return kept_measures.written_columns(self._catalog.path)

    @cached_property
    def _kept(self) -> KeptMeasures:
        return KeptMeasures(self._catalog.path)

    def of_dataset(self, dataset: str) -> AbstractSet[str]:
        """Return the names of the columns that are measured for a dataset, and not those that its list gives."""
        return self.written.keys() - self._catalog.list_scores(dataset)

    def arguments(self, names: Sequence[str]) -> str:
        """Return the arguments of `reelworks measure` that measure columns."""
        entries = sorted({self.entry(name) for name in names})
        options = " ".join(f"--only {system.quoted(entry)}" for entry in entries)
        return f"{system.quoted(str(self._catalog.path))} {options}"

    def entry(self, name: str) -> str:
        """Return what names the measure of a column, as it was named last."""
        return self.written[name].entry if name in self.written else measured_columns.entry_of(name)

    def unmeasured(self, clips: CatalogRows, name: str) -> Mask:
        """Return which of the clips, all readable, were not measured for a column."""
        column, lacking = self.written[name], np.isnan(clips.scores[name])
        if column.complete_in == part_files.identity(self._catalog.parts) or not lacking.any():
            return np.zeros(len(clips), dtype=np.bool_)
        # Of a measure that compares, a new copy has features and is in no group.
        if not column.label.endswith(f":{name}"):
            together = [other for other, one in self.written.items() if one.label == column.label]
            absent = [np.isnan(clips.scores[other]) for other in together if other in clips.scores]
            return np.asarray(np.all(absent, axis=0))
        of = measured_columns.find(name)
        keys_of = kept_measures.keys_of_captions if of is not None and of.of_caption else kept_measures.keys_of
        at = np.flatnonzero(lacking)
        lacking[at] = np.ma.getmaskarray(self._kept.values([column.label], keys_of(clips.take(at))))[:, 0]
        return lacking


def readable(rows: CatalogRows, dataset: DatasetConfig) -> CatalogRows:
    """Return the clips of a dataset that can be read."""
    return rows.take(np.flatnonzero(rows.of_datasets([dataset.dataset_name]) & rows.readable))


def require_scores(datasets: list[DatasetConfig], rows: CatalogRows, catalog: Catalog) -> None:
    """Refuse filters and caption templates with a name that is no column and no score of any clip of their dataset.

    Columns that `reelworks measure` gives are refused where it was never applied to the dataset, and in filters those that
    rank near-duplicates: the best of a group may be in no dataset of the recipe, or not fit.
    """
    columns = MeasuredColumns(catalog)
    for index, dataset in enumerate(datasets):
        if ranks := _in_filter(dataset) & {GROUP, RANK} - catalog.list_scores(dataset.dataset_name):
            raise UserError(
                f"{max(ranks)} is measured over the whole catalog: if the best clip of a group is in none of the datasets, "
                "is gone or does not fit, the filter leaves out the others, too",
                code="filter-of-duplicates",
                field="dataset.filter",
                value=dataset.filter,
                remedy=f"take it out of the filter (for a run that has begun: `--set dataset.{index}.filter=none`), and set "
                'duplicates = "best", which trains the best of those that fit',
            )
        names = scores_of(dataset)
        if not names:
            continue
        clips = rows.of_datasets([dataset.dataset_name])
        known = frozenset(name for name, score in rows.scores.items() if np.isfinite(score[clips]).any())
        measured = names - known & columns.of_dataset(dataset.dataset_name) & rows.scores.keys()
        good = readable(rows, dataset) if measured else rows
        never = {name for name in measured if len(good) and columns.unmeasured(good, name).all()}
        known |= rows.scores.keys() & {*measured_columns.names(), *measured} - never  # as pictures have no motion
        _require_measured(dataset, names - known, columns)
        if dataset.filter:
            filter_expression.parse(dataset.filter, scores=known)
        template.parse(dataset.caption, known)


def _require_measured(dataset: DatasetConfig, missing: set[str], columns: MeasuredColumns) -> None:
    """Refuse names of columns that `reelworks measure` gives, for a dataset that was not measured yet."""
    measures = sorted(
        name for name in missing if name in columns.written or measured_columns.measure_of(name) is not None
    )
    if not measures:
        return
    in_filter = not _in_filter(dataset).isdisjoint(measures)
    entries = sorted({columns.entry(name) for name in measures})
    raise UserError(
        f"the clips of dataset {dataset.dataset_name} were not measured yet: they have no {', '.join(measures)}",
        code="not-measured",
        field="dataset.filter" if in_filter else "dataset.caption",
        value=dataset.filter if in_filter else dataset.caption,
        remedy=f"run `reelworks measure {columns.arguments(measures)}`, or in the recipe data.measures = "
        f"[{', '.join(map(repr, entries))}] to measure after each scan",
    )


def require_duplicates(datasets: Sequence[DatasetConfig], rows: CatalogRows, catalog: Catalog) -> None:
    """Refuse datasets whose near-duplicates are to count once if the catalog does not tell them, or a list a half of it."""
    missing, columns = [name for name in (GROUP, RANK) if name not in rows.scores], MeasuredColumns(catalog)
    for dataset in datasets:
        if dataset.duplicates == "keep":
            continue
        of_list, clips, lacks = {GROUP, RANK} & catalog.list_scores(dataset.dataset_name), readable(rows, dataset), ""
        if len(of_list) == 1:  # ranks mean nothing in other groups than their own
            raise UserError(
                f"the list of {dataset.dataset_name} gives {min(of_list)} alone, and what a list gives is not measured",
                code="duplicates-incomplete",
                field="dataset.duplicates",
                value=dataset.duplicates,
                remedy=f"add the column {min({GROUP, RANK} - of_list)} to the list, or rename {min(of_list)} in it, and scan again",
            )
        if missing:
            lacks = f"it has no columns {' and '.join(missing)}"
        elif RANK in columns.of_dataset(dataset.dataset_name) and len(clips) and columns.unmeasured(clips, RANK).all():
            lacks = "none of the dataset was measured yet"
        if lacks:
            raise UserError(
                f"the catalog does not tell which clips are near-duplicates: {lacks}",
                code="duplicates-not-measured",
                field="dataset.duplicates",
                value=dataset.duplicates,
                remedy=f"measure them: `reelworks measure {columns.arguments([RANK])}`, or in the recipe "
                f'data.measures = ["{columns.entry(RANK)}"]',
            )


def warn(datasets: Sequence[DatasetConfig], catalog: Catalog, *, told: AbstractSet[str] = frozenset()) -> None:
    """Warn of clips that lack a number, which others of their dataset have, since they were not measured.

    Columns in `told` are left out. Of a dataset in which no clip was measured, opening it tells.
    """
    columns = MeasuredColumns(catalog)
    for dataset in datasets:
        wanted = scores_of(dataset) | ({RANK} if dataset.duplicates != "keep" else set())
        names = wanted & columns.of_dataset(dataset.dataset_name) - told if wanted else set()
        names = {name for name in names if name in catalog.live().scores}
        if not names:
            continue
        clips = readable(catalog.live(), dataset)
        found = {name: columns.unmeasured(clips, name) for name in sorted(names)}
        count = int(np.any([*found.values()], axis=0).sum())
        lacking = [name for name, mask in found.items() if mask.any()]
        if count > 0 and not any(mask.all() for mask in found.values()):
            logger.warning(
                "dataset %s: %d of %d clips were not measured yet, and have no %s: run `reelworks measure %s`",
                *(dataset.dataset_name, count, len(clips), ", ".join(lacking), columns.arguments(lacking)),
            )
