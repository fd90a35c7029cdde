"""Sizes, components and published releases of Krea 2 networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.core.errors import UserError
from reelworks.models import family

_BLOCK = {
    "attn.to_q": "attn.wq",
    "attn.to_k": "attn.wk",
    "attn.to_v": "attn.wv",
    "attn.to_out.0": "attn.wo",
    "attn.to_gate": "attn.gate",
    "ff.gate": "mlp.gate",
    "ff.up": "mlp.up",
    "ff.down": "mlp.down",
}
_RELEASE_LAYERS = (
    *family.release_blocks("transformer_blocks", "blocks", _BLOCK),
    *family.release_blocks("text_fusion.layerwise_blocks", "txtfusion.layerwise_blocks", _BLOCK),
    *family.release_blocks("text_fusion.refiner_blocks", "txtfusion.refiner_blocks", _BLOCK),
    family.KeyRule("text_fusion.projector", "txtfusion.projector"),
    family.KeyRule("txt_in.linear_1", "txtmlp.1"),
    family.KeyRule("txt_in.linear_2", "txtmlp.3"),
    family.KeyRule("img_in", "first"),
    family.KeyRule("time_embed.linear_1", "tmlp.0"),
    family.KeyRule("time_embed.linear_2", "tmlp.2"),
    family.KeyRule("time_mod_proj", "tproj.1"),
    family.KeyRule("final_layer.linear", "last.linear"),
)


class Krea2Config(Config):
    """Arguments of diffusers' Krea2Transformer2DModel; defaults are the published ones.

    `distilled`: few steps were distilled into it, at times that do not depend on a picture's size.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    conditioning: ClassVar[family.Conditioning] = family.Conditioning()
    network: ClassVar[family.Network] = family.Network(
        "Krea2Transformer2DModel",
        ("text_fusion.layerwise_blocks", "text_fusion.refiner_blocks", "transformer_blocks"),
        release_layers=_RELEASE_LAYERS,
    )

    in_channels: int = 64
    num_layers: int = 28
    attention_head_dim: int = 128
    num_attention_heads: int = 48
    num_key_value_heads: int = 12
    intermediate_size: int = 16384
    text_hidden_dim: int = 2560
    num_text_layers: int = 12
    text_num_attention_heads: int = 20
    text_num_key_value_heads: int = 20
    text_intermediate_size: int = 6912
    axes_dims_rope: tuple[int, int, int] = (32, 48, 48)
    distilled: bool = Field(default=False, exclude=True)

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components; a token holds the states of several layers of the encoder."""
        width, rest = divmod(components.text_dim, self.num_text_layers)
        if rest:
            raise UserError(
                f"this model takes the states of {self.num_text_layers} layers of an encoder as one token",
                code="text-width-not-a-multiple",
                field="text_encoder.dim",
                value=components.text_dim,
                remedy=f"use a multiple of {self.num_text_layers}, or the text encoder that the model was trained with",
            )
        return self.model_copy(update={"in_channels": 4 * components.latent_channels, "text_hidden_dim": width})


_TINY = Krea2Config(
    num_layers=2,
    attention_head_dim=16,
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=64,
    num_text_layers=2,
    text_num_attention_heads=2,
    text_num_key_value_heads=2,
    text_intermediate_size=32,
    axes_dims_rope=(4, 6, 6),
)
# Its pipeline counts guidance from 0: its scale of 4.5 is 5.5 here.
_preset = partial(
    family.Preset,
    parts=family.Parts("qwen-image", "krea2", same_latents=("wan-2.1",)),
    sampling=family.SamplingDefaults(5.5, 28),
)
_QWEN3_VL = family.TextNetwork("text_encoder", "qwen3_vl_text", 151_936)
FAMILY = family.Family(
    name="krea2",
    network=f"{__package__}.network",
    presets={
        # Its pipeline's shift at 1024 × 1024 pixels.
        "krea2-raw": _preset(
            Krea2Config(), release=family.Release("krea/Krea-2-Raw", timestep_shift=2.5, architecture="krea2")
        ),
        # Sampling defaults of its release; exp(1.15), a fixed shift.
        "krea2-turbo": _preset(
            Krea2Config(distilled=True),
            sampling=family.SamplingDefaults(1.0, 8),
            release=family.Release("krea/Krea-2-Turbo", timestep_shift=3.16, architecture="krea2", distilled=True),
        ),
        "krea2-tiny": _preset(_TINY),
    },
    text_encoders={
        "krea2": family.PublishedText("Krea2Pipeline", 30720, 512, parameters=4_437_815_808, networks=(_QWEN3_VL,))
    },
    # The release asks to train on Raw.
    short_names={"krea": "krea2-raw", "krea2": "krea2-raw"},
)
