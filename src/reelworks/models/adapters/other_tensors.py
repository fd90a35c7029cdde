"""Name the tensors in LoRA files that are no update of a weight that is read here. Torch-free."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

# What tensors are, by patterns of their names; the first that is found wins.
_KINDS = (
    (r"(^|\.)bundle_emb\.|emb_params$|string_to_(param|token)|^(clip_[glh]|t5xxl?|text_embeddings)(_\d+)?$", "embeddings of words"),
    (r"^lora_controlnet$|\.(up|down)$", "parts of a Control-LoRA"),
    (r"\.diff$", "differences of weights (.diff)"),
    (r"\.diff_b$", "differences of biases (.diff_b)"),
    (r"\.w_norm$", "differences of norms (.w_norm)"),
    (r"\.b_norm$", "differences of norms' biases (.b_norm)"),
    (r"\.(lora_\w+|lora\.\w+)(\.\w+)?\.bias$", "biases of LoRAs"),
    (r"\.set_weight$", "replacements of weights (.set_weight)"),
    (r"\.reshape_weight$", "new shapes of weights (.reshape_weight)"),
    (r"\.[ab][12](\.weight)?$", "parts of GLoRAs"),
    (r"\.hada_\w+$", "parts of LoHas"),
    (r"\.lokr_\w+$", "parts of LoKrs"),
    (r"\.(oft|boft)_\w+(\.weight)?$", "parts of OFTs of another form"),
    (r"\.(ia3_l|on_input)(\.weight)?$", "parts of IA³"),
    (r"\.(dora_scale|lora_magnitude_vector(\.weight)?)$", "magnitudes of DoRAs"),
    (r"\.alpha$", "alphas without an update"),
    (r"\.lora_mid\.weight$|\.lora(_\w+|\.up|\.down)(\.default)?(\.weight)?$", "parts of LoRAs"),
    (r"\.processor\.", "parts of an IP-Adapter or of attention processors"),
    (r"(^|\.)(weight|bias)$", "whole weights and biases"),
)  # fmt: skip
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
