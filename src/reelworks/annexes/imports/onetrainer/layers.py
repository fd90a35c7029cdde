"""Linear layers of the networks that OneTrainer trains, by which its layer filters become `lora.targets`; torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reelworks.annexes.imports import tables
from reelworks.models import registry

# By the beginning of the preset; N stands for a number.
LAYERS: dict[str, Sequence[str]] = tables.table("onetrainer", "layers")
# Without sizes, and with convolutions where SDXL has linear layers.
LAYERS["sd1.5"] = [name for name in LAYERS["sdxl"] if not re.search(r"add_embedding|proj_(in|out)$", name)]
_NUMBERS = ("0", "1")  # of blocks, to find out whether a filter tells them apart


class Targets(NamedTuple):
    """`lora.targets` for a filter, and what is other than there."""

    names: list[str] | str  # "blocks" if the layers are all of these
    others: list[str]  # layers that the names mean, too
    by_number: bool  # whether the filter chooses blocks by their numbers, which the names do not


def targets(preset: str, patterns: Sequence[str], regex: bool) -> Targets:
    """Return the names with which `lora.targets` means the layers that match one of some patterns.

    Raises:
        ValueError: A pattern is no regular expression, or no layer that is known matches.
    """
    layers = next((known for start, known in LAYERS.items() if preset.startswith(start)), ())
    tests = [re.compile(pattern.strip() if regex else re.escape(pattern.strip())) for pattern in patterns]
    found = {layer: [_matches(layer, number, tests) for number in _NUMBERS] for layer in layers}
    chosen = [layer for layer in layers if any(found[layer])]
    if not chosen:
        raise ValueError("no layer matches")
    blocks = tuple(f"{name}." for name in registry.PRESETS[preset].config.network.blocks)
    by_number = any(len(set(each)) > 1 for each in found.values())
    if set(chosen) == {layer for layer in layers if layer.startswith(blocks)}:
        return Targets("blocks", [], by_number)
    names: list[str] = []
    for layer in chosen:
        if not any(_means(name, layer) for name in names):
            names.append(_ending(layer, layers, chosen))
    others = [layer for layer in layers if layer not in chosen and any(_means(name, layer) for name in names)]
    return Targets(names, others, by_number)


def _matches(layer: str, number: str, tests: Iterable[re.Pattern[str]]) -> bool:
    name = re.sub(r"\bN\b", number, layer)
    return any(test.search(name) for test in tests)


def _means(name: str, layer: str) -> bool:
    return layer == name or layer.endswith(f".{name}")


def _ending(layer: str, layers: Sequence[str], chosen: Sequence[str]) -> str:
    """Return the shortest end of a name that means no layer but chosen ones; if there is none, the longest one."""
    path = layer.split("N.")[-1].split(".")
    ends = [".".join(path[at:]) for at in reversed(range(len(path))) if at == 0 or not path[at].isdecimal()]
    exact = (end for end in ends if all(each in chosen for each in layers if _means(end, each)))
    return next(exact, ends[-1])
