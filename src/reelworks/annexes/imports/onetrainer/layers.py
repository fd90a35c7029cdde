"""Linear layers of the networks that OneTrainer trains, by which its layer filters become `lora.targets`; torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from reelworks.models import registry

_QKV = ("to_q", "to_k", "to_v")
_ADDED = ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
_NET = ("net.0.proj", "net.2")


def _at(*stems: str, of: Iterable[str]) -> list[str]:
    """Return the names of layers behind stems."""
    return [f"{stem}.{layer}" for stem in stems for layer in of]


_BOTH = (*_QKV, "to_out.0")
_STREAMS = _at("transformer_blocks.N.attn", of=(*_BOTH, *_ADDED))
_FEED_FORWARD = _at("transformer_blocks.N.ff", "transformer_blocks.N.ff_context", of=_NET)
_MODULATION = _at("transformer_blocks.N", of=("norm1.linear", "norm1_context.linear"))
_SINGLE = _at("single_transformer_blocks.N", of=("proj_mlp", "proj_out", *_at("attn", of=_QKV)))
_LINEAR = ("linear_1", "linear_2")
_ENDS = ["norm_out.linear", "proj_out"]
_SD3 = [
    *_at("time_text_embed.timestep_embedder", "time_text_embed.text_embedder", of=_LINEAR),
    *("context_embedder", *_MODULATION, *_STREAMS, *_FEED_FORWARD, *_ENDS),
]
_FLUX2 = [
    *_at("time_guidance_embed.timestep_embedder", of=_LINEAR),
    *_at("double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation", of=("linear",)),
    *("x_embedder", "context_embedder", *_STREAMS),
    *_at("transformer_blocks.N.ff", "transformer_blocks.N.ff_context", of=("linear_in", "linear_out")),
    *_at("single_transformer_blocks.N.attn", of=("to_qkv_mlp_proj", "to_out")),
    *_ENDS,
]
_KREA_BLOCK = (*_at("attn", of=(*_QKV, "to_gate", "to_out.0")), *_at("ff", of=("gate", "up", "down")))
_Z_BLOCK = (*_at("attention", of=_BOTH), *_at("feed_forward", of=("w1", "w2", "w3")))
_UNET_BLOCK = _at("transformer_blocks.N", of=(*_at("attn1", "attn2", of=_BOTH), *_at("ff", of=_NET)))
# By the beginning of the preset; N stands for a number.
LAYERS: Mapping[str, Sequence[str]] = {
    "flux-": [
        *_at("time_text_embed.timestep_embedder", "time_text_embed.guidance_embedder", of=_LINEAR),
        *_at("time_text_embed.text_embedder", of=_LINEAR),
        *("context_embedder", "x_embedder", *_MODULATION, *_STREAMS, *_FEED_FORWARD),
        *("single_transformer_blocks.N.norm.linear", *_SINGLE, *_ENDS),
    ],
    "flux2-dev": [*_at("time_guidance_embed.guidance_embedder", of=_LINEAR), *_FLUX2],
    "flux2-": _FLUX2,
    "chroma": [
        *_at("distilled_guidance_layer", of=("in_proj", "out_proj", *_at("layers.N", of=_LINEAR))),
        *("context_embedder", "x_embedder", *_STREAMS, *_FEED_FORWARD, *_SINGLE, "proj_out"),
    ],
    "krea2": [
        *("img_in", *_at("time_embed", "txt_in", of=_LINEAR), "time_mod_proj", "text_fusion.projector"),
        *_at("text_fusion.layerwise_blocks.N", "text_fusion.refiner_blocks.N", "transformer_blocks.N", of=_KREA_BLOCK),
        "final_layer.linear",
    ],
    "qwen-image": [
        *_at("time_text_embed.timestep_embedder", of=_LINEAR),
        *("img_in", "txt_in", *_at("transformer_blocks.N", of=("img_mod.1", "txt_mod.1")), *_STREAMS),
        *(*_at("transformer_blocks.N.img_mlp", "transformer_blocks.N.txt_mlp", of=_NET), *_ENDS),
    ],
    "sd3.5-medium": [*_SD3, *_at("transformer_blocks.N.attn2", of=_BOTH)],
    "sd3": _SD3,
    "sdxl": [
        *_at("time_embedding", "add_embedding", of=_LINEAR),
        *_at(
            *("down_blocks.N.attentions.N", "up_blocks.N.attentions.N", "mid_block.attentions.N"),
            of=("proj_in", "proj_out", *_UNET_BLOCK),
        ),
        *_at("down_blocks.N.resnets.N", "up_blocks.N.resnets.N", "mid_block.resnets.N", of=("time_emb_proj",)),
    ],
    "z-image": [
        *("all_x_embedder.2-1", *_at("all_final_layer.2-1", of=("linear", "adaLN_modulation.1"))),
        *_at("noise_refiner.N", "context_refiner.N", "layers.N", of=_Z_BLOCK),
        *_at("noise_refiner.N", "layers.N", of=("adaLN_modulation.0",)),
        *("t_embedder.mlp.0", "t_embedder.mlp.2", "cap_embedder.1"),
    ],
}
_NUMBERS = ("0", "1")  # of blocks, to find out whether a filter tells them apart


class Targets(NamedTuple):
    """`lora.targets` for a filter, and what is other than there."""

    names: list[str] | str  # "blocks" if the layers are all of these
    others: list[str]  # layers that the names mean, too
    by_number: bool  # whether the filter chooses blocks by their numbers, which the names do not


def targets(preset: str, patterns: Sequence[str], regex: bool) -> Targets:
    """Return the names with which `lora.targets` means the layers that match one of some patterns.

    Raises:
        LookupError: The layers of the model are not known.
        ValueError: A pattern is no regular expression, or no layer matches.
    """
    layers = next(known for start, known in LAYERS.items() if preset.startswith(start))
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
