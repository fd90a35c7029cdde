"""Models of OneTrainer: the presets that they are here, their parts, and how shapes and timesteps follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reelworks.annexes.imports import tables
from reelworks.models import registry


class OneTrainerModel(NamedTuple):
    """A `model_type`.

    Attributes:
        presets: Patterns of the name of its weights, each with the preset that they mean; the first that is found wins.
        texts: Its text encoders, as parts of a config.
        part: The part that is trained.
        line: Numbers of `datasets.shift_by_size` for dynamic shifting; None if it has none.
        filters: Layer filters by the names that the window gives them.
    """

    presets: Sequence[Sequence[str]]
    texts: Sequence[str] = ("text_encoder",)
    part: str = "transformer"
    line: Sequence[float] | None = None
    filters: Mapping[str, Sequence[str]] = {}


MODELS = {name: OneTrainerModel(**found) for name, found in tables.table("onetrainer", "models").items()}
# Those that are not here, by the names under which people know them.
OTHERS: dict[str, str] = tables.table("onetrainer", "others")


def names_of(model_type: str, *weights: str) -> list[str]:
    """Return names of the model, the most exact one first."""
    known = MODELS.get(model_type)
    if known is None:
        return [OTHERS.get(model_type, model_type)]
    presets = [preset for _, preset in known.presets]
    exact = [preset for name in weights if name and (preset := registry.find(name)) in presets]
    named = [preset for name in weights for pattern, preset in known.presets if pattern and re.search(pattern, name)]
    return [*exact, *named, presets[-1]]
