"""Tell clips that were never measured from those that have no value, as pictures have no motion.

What is kept by the content of clips tells them apart; it is asked only about clips without a value, and not at all if the
catalog is as `reelworks measure` left it. Where nothing is kept any more, clips count as measured.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reelworks.catalog import filters, kept_measures, measured_columns, template, written_columns
from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.filter_expression import NUMBERS
from reelworks.catalog.kept_measures import KeptMeasures
from reelworks.catalog.rows import CatalogRows
from reelworks.catalog.store import Catalog
from reelworks.catalog.written_columns import WrittenColumn
from reelworks.core.log import logger

Mask = NDArray[np.bool_]
RANK = "duplicate_rank"


def scores_of(dataset: DatasetConfig) -> set[str]:
    """Return the names of scores in the filter and the caption of a dataset."""
    in_filter = filters.scores_named(dataset.filter) if dataset.filter else set()
    return in_filter | (template.names(dataset.caption) - set(NUMBERS))


class MeasuredColumns:
    """The measured columns of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @cached_property
    def written(self) -> Mapping[str, WrittenColumn]:
        """Columns by name, as they were written last."""
        return written_columns.read(self._catalog.path)

    @cached_property
    def _kept(self) -> KeptMeasures:
        return KeptMeasures(self._catalog.path)

    def of_dataset(self, dataset: str) -> AbstractSet[str]:
        """Return the names of the columns that are measured for a dataset, and not those that its list gives."""
        return self.written.keys() - self._catalog.list_scores(dataset)

    def arguments(self, names: Sequence[str]) -> str:
        """Return the arguments of `reelworks measure` that measure columns."""
        entries = sorted({self.entry(name) for name in names})
        options = " ".join(f"--only {shlex.quote(entry)}" for entry in entries)
        return f"{shlex.quote(str(self._catalog.path))} {options}"

    def entry(self, name: str) -> str:
        """Return what names the measure of a column, as it was named last."""
        return self.written[name].entry if name in self.written else measured_columns.entry_of(name)

    def unmeasured(self, clips: CatalogRows, name: str) -> Mask:
        """Return which of the clips, all readable, were not measured for a column."""
        column, lacking = self.written[name], np.isnan(clips.scores[name])
        if column.complete_in == written_columns.state(self._catalog) or not lacking.any():
            return np.zeros(len(clips), dtype=np.bool_)
        if not column.label.endswith(
            f":{name}"
        ):  # of a measure that compares: a new copy has features, and is in no group
            together = [other for other, one in self.written.items() if one.label == column.label]
            absent = [np.isnan(clips.scores[other]) for other in together if other in clips.scores]
            return np.asarray(np.all(absent, axis=0))
        of = measured_columns.find(name)
        keys_of = kept_measures.keys_of_captions if of is not None and of.of_caption else kept_measures.keys_of
        at = np.flatnonzero(lacking)
        lacking[at] = ~self._kept.has([column.label], keys_of(clips.take(at)))
        return lacking


def readable(rows: CatalogRows, dataset: DatasetConfig) -> CatalogRows:
    """Return the clips of a dataset that can be read."""
    return rows.take(np.flatnonzero(rows.of_datasets([dataset.dataset_name]) & rows.readable))


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
