"""Sizes, components and published releases of Stable Diffusion 3 networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models import family

_RELEASE_LAYERS = (
    *family.release_blocks(
        "transformer_blocks",
        "joint_blocks",
        {
            family.QKV: "x_block.attn.qkv",
            family.ADDED_QKV: "context_block.attn.qkv",
            family.QKV.replace("attn", "attn2"): "x_block.attn2.qkv",
            "attn.to_out.0": "x_block.attn.proj",
            "attn2.to_out.0": "x_block.attn2.proj",
            "attn.to_add_out": "context_block.attn.proj",
            "norm1.linear": "x_block.adaLN_modulation.1",
            "norm1_context.linear": "context_block.adaLN_modulation.1",
            "ff.net.0.proj": "x_block.mlp.fc1",
            "ff.net.2": "x_block.mlp.fc2",
            "ff_context.net.0.proj": "context_block.mlp.fc1",
            "ff_context.net.2": "context_block.mlp.fc2",
        },
    ),
    *(
        family.KeyRule(f"time_text_embed.{own}_embedder.linear_{i}", f"{release}_embedder.mlp.{2 * i - 2}")
        for own, release in (("timestep", "t"), ("text", "y"))
        for i in (1, 2)
    ),
    *family.FINAL_LAYERS,
)


class SD3Config(Config):
    """Arguments of diffusers' SD3Transformer2DModel; defaults are those of SD3-medium."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    conditioning: ClassVar[family.Conditioning] = family.Conditioning()

    sample_size: int = 128
    in_channels: int = 16
    out_channels: int = 16
    num_layers: int = 24
    attention_head_dim: int = 64
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    caption_projection_dim: int = 1536
    pooled_projection_dim: int = 2048
    pos_embed_max_size: int = 192
    dual_attention_layers: tuple[int, ...] = ()
    qk_norm: str | None = None

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        own, release = (f"{blocks}.{self.num_layers - 1}." for blocks in ("transformer_blocks", "joint_blocks"))
        # The last block's text norm has scale before shift, like the network's final norm.
        last_norm = family.KeyRule(
            own + "norm1_context.linear", release + "context_block.adaLN_modulation.1", swapped=True
        )
        return family.Network(
            "SD3Transformer2DModel",
            ("transformer_blocks",),
            without_gradient=(own + "attn.add_q_proj", own + "attn.norm_added_q"),  # of texts, whose results are unused
            release_layers=(last_norm, *_RELEASE_LAYERS),
            comfyui_maps_parts=True,
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        channels = components.latent_channels
        return self.model_copy(
            update={
                "in_channels": channels,
                "out_channels": channels,
                "joint_attention_dim": components.text_dim,
                "pooled_projection_dim": family.require_pooled(components),
            }
        )


_TINY = SD3Config(
    sample_size=16,
    num_layers=2,
    attention_head_dim=16,
    num_attention_heads=2,
    caption_projection_dim=32,
    pos_embed_max_size=32,
    qk_norm="rms_norm",
)
_MEDIUM_35 = SD3Config(dual_attention_layers=tuple(range(13)), qk_norm="rms_norm", pos_embed_max_size=384)
_LARGE_35 = SD3Config(num_layers=38, num_attention_heads=38, caption_projection_dim=2432, qk_norm="rms_norm")
_preset = partial(family.Preset, parts=family.Parts("sd3", "sd3"), sampling=family.SamplingDefaults(7.0, 28))


def _release(name: str) -> family.Release:
    return family.Release(f"stabilityai/{name}", architecture=name.removesuffix("-diffusers").replace("3.5", "3-5"))


_ENCODERS = (family.CLIP, family.CLIP_2, family.T5._replace(part="text_encoder_3"))
FAMILY = family.Family(
    name="sd3",
    network=f"{__package__}.network",
    presets={
        "sd3-medium": _preset(SD3Config(), release=_release("stable-diffusion-3-medium-diffusers")),
        "sd3.5-medium": _preset(_MEDIUM_35, release=_release("stable-diffusion-3.5-medium")),
        "sd3.5-large": _preset(_LARGE_35, release=_release("stable-diffusion-3.5-large")),
        "sd3-tiny": _preset(_TINY),
    },
    autoencoders={"sd3": family.picture_autoencoder(16, 1.5305, 0.0609, parameters=83_819_683)},
    text_encoders={
        "sd3": family.PublishedText(
            "StableDiffusion3Pipeline",
            4096,
            333,
            2048,
            parameters=5_580_620_800,
            networks=_ENCODERS,
            tokenizer="tokenizer_3",
        )
    },
    short_names={"sd3": "sd3.5-medium"},
)
