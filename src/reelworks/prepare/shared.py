"""Files that two datasets of a recipe have in common, each of which an epoch trains as two clips."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.rows import CatalogRows

Json = dict[str, Any]


def files(datasets: Sequence[DatasetConfig], rows: CatalogRows) -> list[Json]:
    """Pairs of datasets that nobody can have meant to overlap, as {"datasets", "files"}; the wider one stands first.

    Whoever gives one of them a name, or another caption or filter, means it.
    """
    wide_first = sorted(datasets, key=lambda d: len(d.place.root.resolve().parts))
    pairs = [
        (a, b) for a, b in itertools.combinations(wide_first, 2) if _may_share(a, b) and not _meant(a, b)
    ]
    number = _numbered({d.dataset_name: d for pair in pairs for d in pair}.values(), rows)
    found = []
    for pair in pairs:
        names = [d.dataset_name for d in pair]
        wide, narrow = (number[name] for name in names)
        if count := int(np.isin(narrow, wide, kind="table").sum()):
            found.append({"datasets": names, "files": count})
    return found


def _may_share(wide: DatasetConfig, narrow: DatasetConfig) -> bool:
    return narrow.place.root.resolve().is_relative_to(wide.place.root.resolve())


def _meant(one: DatasetConfig, other: DatasetConfig) -> bool:
    named = one.name is not None or other.name is not None
    return named or (one.caption, one.filter) != (other.caption, other.filter)


def _numbered(datasets: Collection[DatasetConfig], rows: CatalogRows) -> dict[str, NDArray[np.int32]]:
    """A number for each file, the same in all datasets, so that strings are compared once."""
    paths = []
    for dataset in datasets:
        own = rows.path.filter(pa.array(rows.of_datasets([dataset.dataset_name])))
        root, slash = (pa.scalar(text, own.type) for text in (str(dataset.place.root.resolve()), "/"))
        paths.append(pc.binary_join_element_wise(root, own, slash))
    if not paths:
        return {}
    every = pa.concat_arrays(paths).dictionary_encode().indices.to_numpy()
    ends = np.cumsum([len(own) for own in paths])
    return {d.dataset_name: part for d, part in zip(datasets, np.split(every, ends[:-1]), strict=True)}
