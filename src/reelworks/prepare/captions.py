"""Captions as the model is shown them."""

from __future__ import annotations

import math

from reelworks.catalog import template
from reelworks.catalog.expression_parts import NUMBERS
from reelworks.prepare.data import RecipeData


def shown(data: RecipeData, row: int) -> str:
    """Fill the template of a row's dataset with its caption and its numbers."""
    rows = data.rows
    name = rows.dataset[row].as_py()
    dataset = next(d for d in data.recipe.dataset if d.dataset_name == name)
    form, text = dataset.caption, rows.caption[row].as_py() or dataset.missing_caption
    assert text is not None, "clips without a caption are left out where nothing stands for it"
    numbers = {column: _number(data, row, column) for column in template.names(form)}
    return template.fill(form, text, numbers)


def _number(data: RecipeData, row: int, column: str) -> float:
    rows = data.rows
    if column == "caption_length":
        return len(rows.caption[row].as_py() or "")
    if column in NUMBERS:
        return float(getattr(rows, column)[row])
    return float(rows.scores[column][row]) if column in rows.scores else math.nan
