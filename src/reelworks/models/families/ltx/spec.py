"""Sizes, components and published releases of LTX-Video networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models import family

_RELEASE_LAYERS = (
    family.KeyRule("proj_in", "patchify_proj"),
    *(
        family.KeyRule(f"time_embed.{rest}", f"adaln_single.{rest}")
        for rest in ("linear", "emb.timestep_embedder.linear_1", "emb.timestep_embedder.linear_2")
    ),
)


class LTXConfig(Config):
    """Arguments of diffusers' LTXVideoTransformer3DModel; defaults are those of the 2B."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    pictures_only: ClassVar[bool] = False
    conditioning: ClassVar[family.Conditioning] = family.Conditioning(frames=True, takes=("source",))
    network: ClassVar[family.Network] = family.Network(
        "LTXVideoTransformer3DModel",
        ("transformer_blocks",),
        release_layers=_RELEASE_LAYERS,
        sequence=family.SequenceSplit(plan="reelworks.models.shared_tokens"),
    )

    in_channels: int = 128
    out_channels: int = 128
    num_attention_heads: int = 32
    attention_head_dim: int = 64
    cross_attention_dim: int = 2048
    num_layers: int = 28
    caption_channels: int = 4096

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        channels = components.latent_channels
        return self.model_copy(
            update={"in_channels": channels, "out_channels": channels, "caption_channels": components.text_dim}
        )


_TINY = LTXConfig(num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32, num_layers=2)
# The frame rate is the default of diffusers' LTXPipeline.
_preset = partial(
    family.Preset, parts=family.Parts("ltx-video", "ltx-video"), sampling=family.SamplingDefaults(3.0, 50), fps=25.0
)
_release = partial(family.Release, side=640, lines=480, num_frames=97)
FAMILY = family.Family(
    name="ltx-video",
    network=f"{__package__}.network",
    presets={
        "ltx-video-2b": _preset(LTXConfig(), release=_release("Lightricks/LTX-Video")),
        "ltx-video-13b": _preset(
            LTXConfig(attention_head_dim=128, cross_attention_dim=4096, num_layers=48),
            release=_release("Lightricks/LTX-Video-0.9.7-dev"),
        ),
        "ltx-tiny": _preset(_TINY),
    },
    autoencoders={
        "ltx-video": family.PublishedAutoencoder(
            "AutoencoderKLLTXVideo",
            128,
            (8, 32, 32),
            (8, 1),
            parameters=419_193_649,
            signs=("per_channel_statistics.mean-of-means", "latents_mean"),
        )
    },
    text_encoders={
        "ltx-video": family.PublishedText(
            "LTXPipeline", 4096, 128, parameters=4_762_310_656, networks=(family.T5._replace(part="text_encoder"),)
        )
    },
    short_names={"ltx": "ltx-video-2b"},
)
