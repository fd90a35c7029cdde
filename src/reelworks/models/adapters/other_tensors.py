"""Name the tensors in LoRA files that are no update of a weight that is read here. Torch-free."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from reelworks.core import toml

_KINDS: list[tuple[str, str]] = toml.beside(__file__, "other_tensors.toml")["kinds"]
# Ends of names beside an update of a layer that do not change what the update adds to the layer's weight.
_BESIDE = re.compile(
    r"diff|diff_b|w_norm|b_norm|set_weight|reshape_weight|(base_layer\.)?(weight|bias)|(lora_\w+|lora\.\w+)(\.\w+)?\.bias"
)

_ADDED = {"diff": "weight", "w_norm": "weight", "diff_b": "bias", "b_norm": "bias"}


def added_to(name: str) -> tuple[str, str] | None:
    """Return the layer, and "weight" or "bias", that a tensor is a plain difference of; None for others."""
    stem, _, end = name.rpartition(".")
    return (stem, _ADDED[end]) if stem and end in _ADDED else None


def kind_of(name: str) -> str:
    """Return what a tensor is by its name, in the plural; unknown ones by the end of their names."""
    known = next((what for pattern, what in _KINDS if re.search(pattern, name)), None)
    if known is not None:
        return known
    *_, last = name.removesuffix(".weight").split(".")
    return f"tensors named {last}"


def counts_of(names: Iterable[str]) -> dict[str, int]:
    """Return the numbers of tensors by what they are."""
    return Counter(map(kind_of, names))


def describe(counts: Mapping[str, int]) -> str:
    """Return numbers of tensors as part of a sentence."""
    return ", ".join(f"{what} × {count:,}" for what, count in counts.items())


def layer_of(name: str, layers: Mapping[str, object]) -> str | None:
    """Return the layer whose update a tensor takes part in by its name; None if it stands alone, or only beside one."""
    parts = name.split(".")
    for at in (len(parts) - 1, len(parts) - 2, len(parts) - 3):
        stem, end = ".".join(parts[:at]), ".".join(parts[at:])
        if at > 0 and stem in layers and not _BESIDE.fullmatch(end):
            return stem
    return None
