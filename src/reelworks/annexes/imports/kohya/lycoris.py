"""Linear layers that LyCORIS adapts in kohya's scripts, by its preset and by the network; torch-free.

A preset names classes of modules (LyCORIS's `config.py`, f49d30d), whose linear layers are adapted: those of `library/` in
sd-scripts (48d368f) and of musubi-tuner (30c658c).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reelworks.annexes.imports.draft import ImportDraft

_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
_STREAMS = [
    f"transformer_blocks.*.attn.{name}"
    for name in (*_ATTENTION, "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
]
_FEED_FORWARD = [f"{name}.net.{layer}" for name in ("ff", "ff_context") for layer in ("0.proj", "2")]
_LINEAR_2D = [*_ATTENTION, "ff.net.0.proj", "ff.net.2"]
_TRANSFORMER_2D = [*_LINEAR_2D, "proj_in", "proj_out"]
_RESNET = ["time_emb_proj"]
_HUNYUAN = [
    *_STREAMS,
    *(f"transformer_blocks.*.{name}" for name in (*_FEED_FORWARD, "norm1.linear", "norm1_context.linear")),
    "proj_out",
]
_KREA = [
    *(f"transformer_blocks.*.attn.{name}" for name in (*_ATTENTION, "to_gate")),
    *(f"transformer_blocks.*.ff.{name}" for name in ("gate", "up", "down")),
]


class _Network(NamedTuple):
    """Layers of a network, as `lora.targets`: those of blocks, of residual blocks in presets with these, and of attentions."""

    blocks: list[str] | str = "blocks"
    residual: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    missing: str = ""


# By the beginning of the preset's name here.
_NETWORKS: Mapping[str, _Network] = {
    "sdxl": _Network(_TRANSFORMER_2D, tuple(_RESNET), _ATTENTION),
    "sd1.5": _Network(
        _LINEAR_2D, tuple(_RESNET), _ATTENTION, missing="it adapts the convolutions proj_in and proj_out too"
    ),
    **dict.fromkeys(("flux-", "chroma", "flux2-"), _Network(attention=tuple(_STREAMS))),
    "hunyuan-video-1.5": _Network(
        _HUNYUAN, missing="it adapts norm_out.linear too, a name that means layers of the refiner here"
    ),
    "krea2": _Network(_KREA),
    # All its layers are of classes that LyCORIS knows since May 2026; before, those of the last one alone.
    "anima": _Network([*_LINEAR_2D, "linear_1", "linear_2", "patch_embed.proj", "proj_out"]),
    # None of its blocks is of a class that LyCORIS knows, but its last layer is.
    "z-image": _Network(["all_final_layer.2-1.linear", "all_final_layer.2-1.adaLN_modulation.1"]),
}
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
    known = next((network for start, network in _NETWORKS.items() if name.startswith(start)), _Network())
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
