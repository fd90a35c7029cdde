"""Sizes, components and published releases of Qwen-Image networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models import family


class QwenImageConfig(Config):
    """Arguments of diffusers' QwenImageTransformer2DModel; defaults are the published ones.

    `edits`: the source picture of an edit is an input.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True

    in_channels: int = 64
    out_channels: int = 16
    num_layers: int = 60
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 3584
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)
    edits: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        return family.Conditioning(takes=("source",), needs=("source",)) if self.edits else family.Conditioning()

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        # The last block's results for texts are not used.
        parts = ("txt_mlp", "attn.to_add_out", "attn.norm_added_q", "attn.add_q_proj")
        unused = tuple(f"transformer_blocks.{self.num_layers - 1}.{part}" for part in parts)
        return family.Network(
            "QwenImageTransformer2DModel",
            ("transformer_blocks",),
            without_gradient=unused,
            sequence=family.SequenceSplit(captions=True),
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        channels = components.latent_channels
        return self.model_copy(
            update={"in_channels": 4 * channels, "out_channels": channels, "joint_attention_dim": components.text_dim}
        )


_TINY = QwenImageConfig(num_layers=2, attention_head_dim=16, num_attention_heads=2, axes_dims_rope=(4, 6, 6))
# Its autoencoder was derived from Wan 2.1's and shares its encoder.
_PARTS = family.Parts("qwen-image", "qwen-image", same_latents=("wan-2.1",))
_preset = partial(family.Preset, parts=_PARTS, sampling=family.SamplingDefaults(4.0, 50))
_edit = partial(_preset, parts=_PARTS._replace(text="qwen-image-edit"))
_text = partial(family.PublishedText, parameters=8_292_166_656, networks=(family.QWEN2_5_VL,))
FAMILY = family.Family(
    name="qwen-image",
    network=f"{__package__}.network",
    presets={
        "qwen-image": _preset(
            QwenImageConfig(), release=family.Release("Qwen/Qwen-Image", timestep_shift=2.2, architecture="Qwen-Image")
        ),
        "qwen-image-edit": _edit(
            QwenImageConfig(edits=True),
            release=family.Release("Qwen/Qwen-Image-Edit", timestep_shift=2.2, architecture="Qwen-Image-Edit"),
        ),
        "qwen-image-tiny": _preset(_TINY),
        "qwen-image-edit-tiny": _edit(_TINY.model_copy(update={"edits": True})),
    },
    autoencoders={
        "qwen-image": family.PublishedAutoencoder(
            "AutoencoderKLQwenImage",
            16,
            (1, 8, 8),
            parameters=126_892_531,
            config={"z_dim": 16},
            signs=("encoder.norm_out.gamma", "encoder.middle.0.residual.0.gamma"),
        )
    },
    text_encoders={
        "qwen-image": _text("QwenImagePipeline", 3584, 512),
        # About 1370 of the tokens are those of the source picture.
        "qwen-image-edit": _text("QwenImageEditPipeline", 3584, 2048, sees_pictures=True),
    },
    short_names={"qwen": "qwen-image"},
)
