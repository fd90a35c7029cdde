"""Captions as the model is shown them."""

from __future__ import annotations

from reelworks.catalog import template
from reelworks.prepare.data import RecipeData


def shown(data: RecipeData, row: int) -> str:
    """Fill the template of a row's dataset with its caption and its numbers."""
    rows = data.rows
    name = rows.dataset[row].as_py()
    form = next(d.caption for d in data.recipe.dataset if d.dataset_name == name)
    text: str = rows.caption[row].as_py()
    numbers = {
        column: len(text) if column == "caption_length" else float(getattr(rows, column)[row])
        for column in template.names(form)
    }
    return template.fill(form, text, numbers)
