"""Sizes of AuraFlow networks, and how they were published; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models import family


class AuraFlowConfig(Config):
    """Arguments of diffusers' AuraFlowTransformer2DModel; defaults are those of AuraFlow 0.3."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    conditioning: ClassVar[family.Conditioning] = family.Conditioning()
    network: ClassVar[family.Network] = family.Network(
        "AuraFlowTransformer2DModel", ("joint_transformer_blocks", "single_transformer_blocks")
    )

    sample_size: int = 64
    in_channels: int = 4
    out_channels: int = 4
    num_mmdit_layers: int = 4
    num_single_dit_layers: int = 32
    attention_head_dim: int = 256
    num_attention_heads: int = 12
    joint_attention_dim: int = 2048
    caption_projection_dim: int = 3072
    pos_embed_max_size: int = 9216

    def fit(self, components: family.ComponentShapes) -> Self:
        """Take the widths of the components."""
        channels = components.latent_channels
        widths = {"in_channels": channels, "out_channels": channels, "joint_attention_dim": components.text_dim}
        return self.model_copy(update=widths)


_TINY = AuraFlowConfig(
    sample_size=16,
    num_mmdit_layers=1,
    num_single_dit_layers=1,
    attention_head_dim=16,
    num_attention_heads=2,
    caption_projection_dim=32,
    pos_embed_max_size=1024,
)
# Its latents are those of SDXL.
_preset = partial(family.Preset, parts=family.Parts("sdxl", "auraflow"), sampling=family.SamplingDefaults(3.5, 50))
FAMILY = family.Family(
    name="auraflow",
    network=f"{__package__}.network",
    presets={
        "auraflow-0.3": _preset(AuraFlowConfig(), release=family.Release("fal/AuraFlow-v0.3")),
        "auraflow-tiny": _preset(_TINY),
    },
    text_encoders={
        "auraflow": family.PublishedText(
            "AuraFlowPipeline", 2048, 256, networks=(family.TextNetwork("text_encoder", "umt5", 32_128),)
        )
    },
    short_names={"auraflow": "auraflow-0.3"},
)
