"""Sizes of HunyuanVideo 1.5 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from reelworks.models import family, family_file

# Names of Tencent's own files, and those in ComfyUI in their place, which layers have in `LoraNames.release`.
FILES = family.NetworkFiles(
    renamed_keys={
        "_in.mlp.0.": "_in.in_layer.",
        "_in.mlp.2.": "_in.out_layer.",
        "_embedder.mlp.0.": "_embedder.in_layer.",
        "_embedder.mlp.2.": "_embedder.out_layer.",
        "c_embedder.linear_1.": "c_embedder.in_layer.",
        "c_embedder.linear_2.": "c_embedder.out_layer.",
        "attn_qkv.": "attn.qkv.",
        "attn_proj.": "attn.proj.",
        "attn_q_norm.": "attn.norm.query_norm.",
        "attn_k_norm.": "attn.norm.key_norm.",
        ".q_norm.": ".norm.query_norm.",
        ".k_norm.": ".norm.key_norm.",
        "_norm.scale": "_norm.weight",
        "mlp.fc1.": "mlp.0.",
        "mlp.fc2.": "mlp.2.",
        "mod.linear.": "mod.lin.",
        "modulation.linear.": "modulation.lin.",
        "linear2.fc.": "linear2.",
    }
)
NORMS = {
    f"attn.norm_{own}{name}": f"{side}_attn.norm.{there}_norm"
    for own, side in (("", "img"), ("added_", "txt"))
    for name, there in (("q", "query"), ("k", "key"))
}


def release_inputs(embedding: str) -> tuple[family.KeyRule, ...]:
    """Return the rules of the layers before the blocks in Hunyuan's networks, given the name of the time's embedding."""
    return (
        *family.release_blocks(
            "context_embedder.token_refiner.refiner_blocks",
            "txt_in.individual_token_refiner.blocks",
            {
                family.QKV: "self_attn.qkv",
                "attn.to_out.0": "self_attn.proj",
                "ff.net.0.proj": "mlp.0",
                "ff.net.2": "mlp.2",
                "norm_out.linear": "adaLN_modulation.1",
                "norm1": "norm1",
                "norm2": "norm2",
            },
        ),
        *(
            family.KeyRule(f"{own}.linear_{i}", f"{release}.{side}_layer")
            for own, release in (
                (f"{embedding}.timestep_embedder", "time_in"),
                ("context_embedder.time_text_embed.timestep_embedder", "txt_in.t_embedder"),
                ("context_embedder.time_text_embed.text_embedder", "txt_in.c_embedder"),
            )
            for i, side in ((1, "in"), (2, "out"))
        ),
        family.KeyRule("context_embedder.proj_in", "txt_in.input_embedder"),
        *(family.KeyRule(f"context_embedder_2.linear_{i}", f"byt5_in.fc{i}") for i in (1, 2, 3)),
        family.KeyRule("context_embedder_2.norm", "byt5_in.layernorm"),
        family.KeyRule("x_embedder.proj", "img_in.proj"),
    )


_RELEASE_LAYERS = (
    *family.release_blocks("transformer_blocks", "double_blocks", family.TWO_STREAMS | NORMS),
    *release_inputs("time_embed"),
    family.KeyRule("image_embedder.linear_1", "vision_in.proj.1"),
    family.KeyRule("image_embedder.linear_2", "vision_in.proj.3"),
    family.KeyRule("image_embedder.norm_in", "vision_in.proj.0"),
    family.KeyRule("image_embedder.norm_out", "vision_in.proj.4"),
    family.KeyRule("cond_type_embed", "cond_type_embedding"),
    *family.FINAL_LAYERS,
)
# Layers of a block in the networks of other trainers, which have names of the first release.
TRAINERS_BLOCKS = {
    "ff.net.0.proj": "img_mlp.fc1",
    "ff.net.2": "img_mlp.fc2",
    "ff_context.net.0.proj": "txt_mlp.fc1",
    "ff_context.net.2": "txt_mlp.fc2",
    "norm1.linear": "img_mod.linear",
    "norm1_context.linear": "txt_mod.linear",
}
# Of musubi-tuner's network, in which queries, keys and values are apart.
_TRAINERS_LAYERS = family.release_blocks(
    "transformer_blocks",
    "double_blocks",
    {
        **{f"attn.to_{name}": f"img_attn_{name}" for name in "qkv"},
        **{f"attn.add_{name}_proj": f"txt_attn_{name}" for name in "qkv"},
        "attn.to_out.0": "img_attn_proj",
        "attn.to_add_out": "txt_attn_proj",
        **TRAINERS_BLOCKS,
    },
)


class HunyuanVideo15Config(family.NetworkConfig):
    """Arguments of diffusers' HunyuanVideo15Transformer3DModel; defaults are the published ones.

    The input has channels for a condition picture and its mask, which are zeros unless `first_frame` is set.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)

    in_channels: int = 65
    out_channels: family.LatentWidth = 32
    num_attention_heads: int = 16
    attention_head_dim: int = 128
    num_layers: int = 54
    num_refiner_layers: int = 2
    text_embed_dim: family.TextWidth = 3584
    text_embed_2_dim: int = 1472
    image_embed_dim: int = 1152
    rope_axes_dim: tuple[int, int, int] = (16, 56, 56)
    first_frame: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        if not self.first_frame:
            return family.Conditioning()
        return family.Conditioning(shown=family.ShownFrames("alone", encoder="siglip", width=self.image_embed_dim))

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        # The last block's results for texts are not used.
        parts = ("ff_context", "attn.to_add_out", "attn.norm_added_q", "attn.add_q_proj")
        unused = ["context_embedder_2.", *(f"transformer_blocks.{self.num_layers - 1}.{part}" for part in parts)]
        if not self.first_frame:
            unused.append("image_embedder.")
        return family.Network(
            "HunyuanVideo15Transformer3DModel",
            ("transformer_blocks",),
            without_gradient=tuple(unused),
            files=FILES,
            lora=family.LoraNames(_RELEASE_LAYERS, _TRAINERS_LAYERS),
            sequence=family.SequenceSplit(pads=True, divided=f"{__package__}.divided_tokens"),
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        return super().fit(components).model_copy(update={"in_channels": 2 * components.latent_channels + 1})


FAMILY = family_file.read(__package__, HunyuanVideo15Config)
