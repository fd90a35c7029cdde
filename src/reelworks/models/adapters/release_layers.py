"""Layers of diffusers in a model's first release, which may join several: find, split and join them."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.models.adapters import text_encoders
from reelworks.models.family import FamilyConfig, KeyRule


class Place(NamedTuple):
    """The place of a layer of diffusers in a release."""

    layer: str  # of the release
    part: int = 0  # index among the layer's parts, from the top row
    heights: tuple[int, ...] = (1,)  # relative numbers of rows of the parts
    swapped: bool = False  # whether the two halves of its rows are in the other order

    def rows_of_parts(self, rows: int) -> list[int]:
        """Return the numbers of rows of the parts of a layer of so many; none if it is of another release, as they do not divide."""
        unit, rest = divmod(rows, sum(self.heights))
        return [] if rest else [unit * height for height in self.heights]


_Patterns = list[tuple[re.Pattern[str], Place]]


def place(config: FamilyConfig | None, layer: str) -> Place:
    """Return the place of a layer in its family's release: the layer itself without a family or a rule for it."""
    return _place(_patterns_of(config), layer)


def _place(patterns: _Patterns, layer: str) -> Place:
    for pattern, target in patterns:
        if match := pattern.fullmatch(layer):
            return target._replace(layer=match.expand(target.layer))
    return Place(layer)


def _patterns_of(config: FamilyConfig | None) -> _Patterns:
    return [] if config is None else _patterns(config.network.lora.release)


@functools.cache
def _patterns(rules: tuple[KeyRule, ...]) -> _Patterns:
    patterns = []
    for parts, release, heights, swapped in rules:
        layer = release.replace(".N.", r".\1.").replace(".*", r".\1")
        names = parts.split()
        for i, name in enumerate(names):
            escaped = re.escape(name).replace(r"\.N\.", r"\.(\d+)\.").replace(r"\.\*", r"\.(.+)")
            patterns.append((re.compile(escaped), Place(layer, i, heights or (1,) * len(names), swapped)))
    return patterns


def take_apart(state: Mapping[str, Tensor], names: Iterable[str], family: FamilyConfig) -> dict[str, Tensor]:
    """Return the tensors of a release under the names of the network that they belong to; others keep their own."""
    found, used = {}, set()
    for name in names:
        layer, _, kind = name.rpartition(".")
        target = place(family, layer)
        there = f"{target.layer}.{kind}"
        if (whole := state.get(there)) is not None and (heights := target.rows_of_parts(len(whole))):
            rows = torch.split(whole, heights)[target.part]
            found[name] = swap_halves(rows) if target.swapped else rows
            used.add(there)
    return found | {name: value for name, value in state.items() if name not in used}


Layers = dict[str, dict[str, Tensor]]
"""Tensors of each layer by kind, such as A and B."""


class TargetLayer(NamedTuple):
    """A layer of the network that is stored in a layer of a file or in a part of it."""

    layer: str
    place: Place


def homes(layers: Iterable[str], family: FamilyConfig | None) -> dict[str, list[TargetLayer]]:
    """Return the network's layers that each layer name in a file may hold, in the order of their rows."""
    # By layer and rows: names of a release and of trainers may be one if they are folded.
    names: dict[str, dict[tuple[Any, ...], TargetLayer]] = defaultdict(dict)
    patterns = _patterns_of(family)
    of_trainers = [] if family is None else _patterns(family.network.lora.trainers)
    layers = list(layers)
    has_texts = any(text_encoders.part_of(layer) is not None for layer in layers)
    for layer in layers:
        if text_encoders.part_of(layer) is not None:
            for spelling in (layer, *(text_encoders.in_kohya(layer, is_only=only) or layer for only in (False, True))):
                names[spelling][(layer,)] = TargetLayer(layer, Place(layer))
            continue
        # Beside text encoders, layers have the name of the network's folder in front of theirs.
        own = layer.removeprefix(f"{family.network.part}.") if family is not None and has_texts else layer
        for placed_at in (Place(own), _place(patterns, own), _place(of_trainers, own)):
            for spelling in (placed_at.layer, placed_at.layer.replace(".", "_")):
                names[spelling].setdefault((layer, *placed_at[1:]), TargetLayer(layer, placed_at))
    return {name: sorted(targets.values(), key=lambda target: target.place.part) for name, targets in names.items()}


def trained(stacked: Tensor, targets: list[TargetLayer]) -> list[TargetLayer]:
    """Return the target layers whose rows are not all zeros, as those of layers without an update are; all if all are."""
    heights = targets[0].place.rows_of_parts(len(stacked))
    rows = torch.split(stacked, heights) if heights else ()
    return [target for target in targets if rows and rows[target.place.part].any()] or targets


def split_layer(kinds: dict[str, Tensor], targets: list[TargetLayer], rank: int) -> Layers:
    """Split one stored layer into the target layers. Empty if some rows belong to layers without an adapter, or to no part."""
    place = targets[0].place
    values = {k: v.flatten() if k == "magnitude_vector" else v for k, v in kinds.items()}
    if place.heights == (1,):
        if place.swapped:
            values |= {k: swap_halves(v) for k, v in values.items() if k in ("B", "magnitude_vector")}
        return {targets[0].layer: values}
    A, B, stored_rank = values["A"], values["B"], values["A"].shape[0]
    if not (heights := place.rows_of_parts(len(B))):
        return {}
    rows = {target.layer: torch.split(B, heights)[target.place.part] for target in targets}
    if sum(int(row.count_nonzero()) for row in rows.values()) != int(B.count_nonzero()):
        return {}
    blocks = stored_rank != rank and _in_blocks(list(rows.values()))
    lengths = values.get("magnitude_vector")
    size = stored_rank // len(targets) if blocks else stored_rank
    result: Layers = {}
    for i, target in enumerate(targets):
        columns = slice(size * i, size * (i + 1)) if blocks else slice(None)
        result[target.layer] = {"A": A[columns], "B": rows[target.layer][:, columns]}
        if lengths is not None:
            result[target.layer]["magnitude_vector"] = torch.split(lengths, heights)[target.place.part]
    return result


def is_by_columns(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor has the magnitudes of a DoRA's columns, by its name and shape.

    Those of peft's name are of rows, `[out]`, and `[1, out, 1, 1]` of a convolution; of a square weight both are as many.
    """
    return name.endswith("dora_scale") and len(shape) > 1 and shape[0] == 1 < shape[1]


def refusal_of_columns() -> UserError:
    """Return the error for a DoRA by columns."""
    return UserError(
        "the magnitudes of this DoRA are those of columns, and here they are those of rows",
        code="lora-unreadable",
        remedy="merge it into its base with the program that wrote it, or name another file",
    )


def _in_blocks(rows: list[Tensor]) -> bool:
    """Whether each part uses columns of its own, so that its rank is smaller than the stored one."""
    size, rest = divmod(rows[0].shape[1], len(rows))
    return not rest and not any(
        row[:, : size * i].any() or row[:, size * (i + 1) :].any() for i, row in enumerate(rows)
    )


def swap_halves(value: Tensor) -> Tensor:
    """Swap the upper and the lower half of the rows."""
    return torch.cat(value.chunk(2)[::-1])


Parts = Sequence[tuple[Place, Mapping[str, Tensor]]]
"""Tensors of the parts of a layer of the release, in the order of their rows."""


def group_by_release(layers: Mapping[str, Mapping[str, Tensor]], family: FamilyConfig | None) -> dict[str, Parts]:
    """Return the parts of each layer of the release, with the place of each."""
    released = defaultdict(list)
    for layer, kinds in layers.items():
        there = place(family, layer)
        released[there.layer].append((there, kinds))
    return {name: sorted(parts, key=lambda pair: pair[0].part) for name, parts in released.items()}


def join_parts(parts: Parts) -> tuple[Tensor, Tensor]:
    """Join A and B of a layer's parts; parts without an adapter get rows of zeros."""
    place, first = parts[0]
    if place.heights == (1,):
        return first["A"], swap_halves(first["B"]) if place.swapped else first["B"]
    unit = first["B"].shape[0] // place.heights[place.part]
    widest = functools.reduce(torch.promote_types, (kinds["B"].dtype for _, kinds in parts))
    B = first["B"].new_zeros(unit * sum(place.heights), sum(len(kinds["A"]) for _, kinds in parts), dtype=widest)
    left = 0
    for place, kinds in parts:
        top, (rows, rank) = unit * sum(place.heights[: place.part]), kinds["B"].shape
        B[top : top + rows, left : left + rank] = kinds["B"]
        left += rank
    return torch.cat([kinds["A"] for _, kinds in parts]), B
