"""Linear layers that LyCORIS adapts in kohya's scripts, by its preset and by the network; torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reelworks.annexes.imports import tables
from reelworks.annexes.imports.draft import ImportDraft


class _Network(NamedTuple):
    """Layers of a network, see `lycoris.toml`."""

    of: Sequence[str] = ()
    blocks: list[str] | str = "blocks"
    residual: Sequence[str] = ()
    attention: Sequence[str] = ()
    missing: str = ""


_NETWORKS = [_Network(**found) for found in tables.table("kohya", "lycoris")["networks"]]
_WITH_RESIDUAL = ("full", "full-lin", "unet-only")
_WITHOUT = ("attn-mlp", "unet-transformer-only")


class Adapted(NamedTuple):
    """Layers that a preset adapts, and what of it is not here; an empty text if nothing is."""

    targets: list[str] | str
    missing: str = ""


def is_used(draft: ImportDraft) -> bool:
    """Whether the trained network is one of LyCORIS."""
    return str(draft.settings.get("network_module") or "").startswith("lycoris")


def preset_of(draft: ImportDraft) -> str:
    """Return the name of the preset; LyCORIS's default is "full"."""
    return str(draft.settings.get("network_args.preset") or "full")


def adapted(draft: ImportDraft) -> Adapted:
    """Return the layers that LyCORIS adapts in the draft's network."""
    name, preset = str(draft.get("model.name", "")), preset_of(draft)
    known = next((network for network in _NETWORKS if name.startswith(tuple(network.of))), _Network())
    # GLoRA adapts transformers alone, whatever the preset.
    is_glora = draft.settings.get("network_args.algo") == "glora"
    if is_glora or preset in _WITHOUT or (preset in _WITH_RESIDUAL and not known.residual):
        return Adapted(known.blocks, known.missing)
    if preset in _WITH_RESIDUAL:
        return Adapted([*known.blocks, *known.residual], "it adapts convolutions too, which have no update here")
    if preset == "attn-only":
        if known.attention:
            return Adapted([*known.attention])
        return Adapted("default", "it finds no layer of this network; all attentions are the nearest")
    if preset == "unet-convblock-only" and known.residual:
        return Adapted([*known.residual], "it adapts convolutions too, which have no update here")
    return Adapted(known.blocks, "this preset is not known: name its layers in lora.targets")
