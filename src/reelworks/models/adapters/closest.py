"""Find the models whose layers a file of updates fits, by the names and the shapes of its layers."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import nn

from reelworks.models import identify, registry
from reelworks.models.adapters import release_layers
from reelworks.models.adapters.release_layers import TargetLayer
from reelworks.models.family import FamilyConfig

_NUMBER = re.compile(r"\d+")
Sizes = Mapping[str, tuple[int, int]]
"""Outputs and inputs of layers by name, those of a kernel among the inputs; 0 for a number that is not known."""


class ClosestBase(NamedTuple):
    """The presets that most layers of a file fit; several if they are equally close, none if no layer fits any."""

    names: tuple[str, ...]
    fitting: int
    total: int

    @property
    def is_whole(self) -> bool:
        """Whether all layers of the file fit."""
        return bool(self.names) and self.fitting == self.total

    @property
    def family(self) -> FamilyConfig | None:
        """The config of the first of them."""
        return registry.PRESETS[self.names[0]].config if self.names else None


def closest(sizes: Sizes, among: Iterable[str] | None = None, *, of_any_width: bool = False) -> ClosestBase:
    """Find the presets that fit best; those of families that may fit are built on the meta device.

    Layers of any width have but the names of a preset's, and rows that divide into their parts.
    """
    firsts = {name: identify.first_alike(name) for name in (registry.PRESETS if among is None else among)}
    named = Counter(_NUMBER.sub("", name) for name in sizes)
    # What is known by name in a family, at most fits one of its networks.
    most = {one: sum(named[name] for name in named.keys() & _names(one)) for one in firsts.values()}
    by_sizes, best = dict[str, int](), 1
    for first in sorted(most, key=lambda first: -most[first]):
        if most[first] >= best:
            by_sizes[first] = _fitting(first, sizes, of_any_width)
            best = max(best, by_sizes[first])
    counts = {name: by_sizes.get(first, 0) for name, first in firsts.items()}
    best = max(counts.values(), default=0)
    return ClosestBase(tuple(name for name, count in counts.items() if count == best and best), best, len(sizes))


def with_weights(network: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a network that have a weight of two axes or more, without tables: linear ones and convolutions."""
    weights = ((name, child, getattr(child, "weight", None)) for name, child in network.named_modules())
    return {
        name: child
        for name, child, weight in weights
        if weight is not None and weight.ndim > 1 and not isinstance(child, nn.Embedding)
    }


def _fitting(name: str, sizes: Sizes, of_any_width: bool) -> int:
    (layers, homes), count = _spelt(name), 0
    for spelling, (rows, columns) in sizes.items():
        if targets := homes.get(spelling):
            place = targets[0].place
            out, *inputs = layers[targets[0].layer].get_parameter("weight").shape
            if heights := place.rows_of_parts(rows):
                count += of_any_width or (heights[place.part] in (0, out) and columns in (0, math.prod(inputs)))
    return count


@functools.cache
def _spelt(name: str) -> tuple[dict[str, nn.Module], dict[str, list[TargetLayer]]]:
    layers = with_weights(identify.network(name))
    return layers, release_layers.homes(layers, registry.PRESETS[name].config)


@functools.cache
def _names(preset: str) -> frozenset[str]:
    """Return the names of the layers of its family's networks, without digits, of which the tiny ones have all."""
    family = registry.family_of(preset).name
    tiny = [name for name in registry.PRESETS if "tiny" in name and registry.family_of(name).name == family]
    return frozenset(_NUMBER.sub("", spelling) for name in tiny for spelling in _spelt(identify.first_alike(name))[1])
