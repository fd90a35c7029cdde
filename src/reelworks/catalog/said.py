"""What a list says of files beside what their live rows say; whole columns at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.rows import SCORE, CatalogRows

Scores = Mapping[str, NDArray[np.float64]]
Places = NDArray[np.int64]


def same_scores(live: CatalogRows, row: Places, scores: Scores, number: Places) -> NDArray[np.bool_]:
    """True where rows have the scores of a list, and no other.

    Args:
        live: The live rows.
        row: Places in `live`.
        scores: Of a list.
        number: Places in the list, one for each of `row`.
    """
    same = np.ones(len(row), dtype=np.bool_)
    for name in {**live.scores, **scores}:
        was, now = (
            column[name][at] if name in column else np.full(len(at), np.nan)
            for column, at in ((live.scores, row), (scores, number))
        )
        same &= (was == now) | (np.isnan(was) & np.isnan(now))
    return same


def same_words(live: CatalogRows, row: Places, captions: Any, root: str) -> NDArray[np.bool_]:
    """True where rows have these captions, null for none, and this root."""
    now, was = captions, live.caption.take(pa.array(row))
    both_missing = pc.and_(pc.is_null(was), pc.is_null(now))
    same = pc.fill_null(pc.equal(was, now), both_missing)
    there = pc.equal(live.root.take(pa.array(row)).cast(pa.string()), root)
    return np.asarray(pc.and_(same, there).to_numpy(zero_copy_only=False), dtype=np.bool_)


def retold(live: CatalogRows, row: Places, captions: Any, root: str, scores: Scores) -> Any:
    """Rows with other captions, root and scores, as a table; their measures stay."""
    table = replace(live.take(row), scores={}).to_table()
    roots = pa.DictionaryArray.from_arrays(np.zeros(len(row), dtype=np.int32), [root])
    for name, column in (("caption", captions), ("root", roots)):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), column)
    for name, score in scores.items():
        table = table.append_column(SCORE + name, pa.array(score, from_pandas=True))
    return table
