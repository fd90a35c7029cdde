"""Sizes, components and published releases of Qwen-Image networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models import family


class QwenImageConfig(Config):
    """Arguments of diffusers' QwenImageTransformer2DModel; defaults are the published ones.

    `most_sources`: number of pictures that an edit may have as inputs, at least one; 0 if it takes none.
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
    zero_cond_t: bool = False
    most_sources: int = Field(default=0, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        if not self.most_sources:
            return family.Conditioning()
        return family.Conditioning(takes=("source",), needs=("source",), most_sources=self.most_sources)

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
# Their README tells of 40 steps, and of one to three pictures.
_edit_plus = partial(
    _preset, parts=_PARTS._replace(text="qwen-image-edit-plus"), sampling=family.SamplingDefaults(4.0, 40)
)
_release = partial(family.Release, timestep_shift=2.2)
_text = partial(family.PublishedText, parameters=8_292_166_656, networks=(family.QWEN2_5_VL,))
FAMILY = family.Family(
    name="qwen-image",
    network=f"{__package__}.network",
    presets={
        "qwen-image": _preset(QwenImageConfig(), release=_release("Qwen/Qwen-Image", architecture="Qwen-Image")),
        "qwen-image-2512": _preset(
            QwenImageConfig(), release=_release("Qwen/Qwen-Image-2512", architecture="Qwen-Image")
        ),
        "qwen-image-edit": _edit(
            QwenImageConfig(most_sources=1),
            release=_release("Qwen/Qwen-Image-Edit", architecture="Qwen-Image-Edit"),
        ),
        "qwen-image-edit-2509": _edit_plus(
            QwenImageConfig(most_sources=3),
            release=_release("Qwen/Qwen-Image-Edit-2509", architecture="Qwen-Image-Edit-Plus"),
        ),
        # Its sources have time 0.
        "qwen-image-edit-2511": _edit_plus(
            QwenImageConfig(most_sources=3, zero_cond_t=True),
            release=_release("Qwen/Qwen-Image-Edit-2511", architecture="Qwen-Image-Edit-2511"),
        ),
        "qwen-image-tiny": _preset(_TINY),
        "qwen-image-edit-tiny": _edit(_TINY.model_copy(update={"most_sources": 1})),
        "qwen-image-edit-plus-tiny": _edit_plus(_TINY.model_copy(update={"most_sources": 3, "zero_cond_t": True})),
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
        # About 200 tokens are those of a picture.
        "qwen-image-edit-plus": _text("QwenImageEditPlusPipeline", 3584, 1024, sees_pictures=True),
    },
    short_names={
        "qwen": "qwen-image",
        "qwen-edit": "qwen-image-edit",
        "qwen-image-edit-plus": "qwen-image-edit-2509",
    },
)
