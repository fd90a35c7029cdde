"""Scores that a recipe's filters and captions name, against those that its clips have."""

from __future__ import annotations

import numpy as np

from reelworks.catalog import expression, filters, template
from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.expression_parts import NUMBERS
from reelworks.catalog.rows import CatalogRows


def require(datasets: list[DatasetConfig], rows: CatalogRows) -> None:
    """Refuse a name that is neither a column of the catalog nor a score of any clip of its dataset.

    Args:
        datasets: The recipe's.
        rows: Live rows of their clips.

    Raises:
        UserError: With the name and the one nearest to it.
    """
    for one in datasets:
        named = filters.scores_named(one.filter) if one.filter else set()
        if not named | (template.names(one.caption) - set(NUMBERS)):
            continue
        its = rows.of_datasets([one.dataset_name])
        known = frozenset(name for name, score in rows.scores.items() if np.isfinite(score[its]).any())
        if one.filter:
            expression.parse(one.filter, scores=known)
        template.parse(one.caption, known)
