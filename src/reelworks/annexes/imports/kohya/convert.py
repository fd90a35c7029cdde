"""Convert what both trainers are given, once the model and the datasets are chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reelworks.annexes.imports.datasets import needed
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.kohya import adapters, reading, training
from reelworks.annexes.imports.rules import ImportedKey, Rule
from reelworks.annexes.imports.trainer import convert_by_rules


def convert(draft: ImportDraft, rules: Mapping[str, Rule], defaults: Mapping[str, Any]) -> Iterator[ImportedKey]:
    """Yield what became of each key; defaults are those of arguments, which a dataset alone does not have."""
    if not reading.has_arguments(draft.settings):
        defaults = {}
        yield training.WITHOUT_ARGUMENTS
    yield from needed(draft)
    yield from convert_by_rules(draft, rules, defaults, training.FIRST)
    training.finish(draft)
    adapters.finish(draft)
