"""Rules for layer names of a model's first release that several families share; torch-free."""

from __future__ import annotations

from collections.abc import Mapping

from reelworks.models.family import KeyRule

QKV, ADDED_QKV = "attn.to_q attn.to_k attn.to_v", "attn.add_q_proj attn.add_k_proj attn.add_v_proj"
# Blocks with one stream for images and one for texts, as in Flux and its relatives.
TWO_STREAMS = {
    QKV: "img_attn.qkv",
    ADDED_QKV: "txt_attn.qkv",
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "norm1.linear": "img_mod.lin",
    "norm1_context.linear": "txt_mod.lin",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
    "ff.linear_in": "img_mlp.0",
    "ff.linear_out": "img_mlp.2",
    "ff_context.linear_in": "txt_mlp.0",
    "ff_context.linear_out": "txt_mlp.2",
}
FINAL = (
    KeyRule("norm_out.linear", "final_layer.adaLN_modulation.1", swapped=True),
    KeyRule("proj_out", "final_layer.linear"),
)


def blocks(own: str, release: str, layers: Mapping[str, str]) -> tuple[KeyRule, ...]:
    """Return the rules of a list of blocks, which has one name in diffusers and another in the release.

    `layers` are a block's layers in the release by those in diffusers, of which several are separated by spaces.
    """
    return tuple(
        KeyRule(" ".join(f"{own}.N.{part}" for part in parts.split()), f"{release}.N.{layer}")
        for parts, layer in layers.items()
    )


def inputs(embedding: str) -> tuple[KeyRule, ...]:
    """Return the rules of the input layers of Flux and its relatives, given the name of the embedding module."""
    return (
        *(
            KeyRule(f"{embedding}.{embedder}_embedder.linear_{i}", f"{release}_in.{side}_layer")
            for embedder, release in (("timestep", "time"), ("text", "vector"), ("guidance", "guidance"))
            for i, side in ((1, "in"), (2, "out"))
        ),
        KeyRule("context_embedder", "txt_in"),
        KeyRule("x_embedder", "img_in"),
    )
