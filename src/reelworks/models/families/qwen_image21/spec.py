"""Sizes, components and published releases of Qwen-Image 2.1 networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models import family

_RELEASE_LAYERS = family.release_blocks(
    "transformer_blocks", "transformer_blocks", {"img_mlp.gate_layer img_mlp.proj": "img_mlp.gate_up"}
)


class QwenImage21Config(Config):
    """Arguments of diffusers' QwenImage21Transformer2DModel; defaults are the published ones.

    `edits`: source pictures are inputs too.
    """

    # A token is one latent element; the text encoder's places for pictures stand for 2 × 2 of them.
    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    network: ClassVar[family.Network] = family.Network(
        "QwenImage21Transformer2DModel",
        ("transformer_blocks",),
        release_layers=_RELEASE_LAYERS,
        caption_multiple=1,
        clip_by_clip=True,
    )

    in_channels: int = 64
    out_channels: int = 64
    num_layers: int = 32
    attention_head_dim: int = 128
    num_attention_heads: int = 32
    context_in_dim: int = 4096
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)
    edits: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        edits = family.Conditioning(takes=("source",), needs=("source",), most_sources=4)
        return edits if self.edits else family.Conditioning()

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        channels = components.latent_channels
        widths = {"in_channels": channels, "out_channels": channels, "context_in_dim": components.text_dim}
        return self.model_copy(update=widths)


_TINY = QwenImage21Config(num_layers=2, attention_head_dim=16, num_attention_heads=2, axes_dims_rope=(4, 6, 6))
_PARTS = family.Parts("qwen-image-2.1", "qwen-image-2.1")
# The release is sampled without guidance.
_preset = partial(family.Preset, parts=_PARTS, sampling=family.SamplingDefaults(1.0, 40))
_edit = partial(_preset, parts=_PARTS._replace(text="qwen-image-2.1-edit"))
# Its scheduler shifts by e^0.69 for a picture of 1024 × 1024 pixels.
_release = partial(
    family.Release,
    timestep_shift=2.0,
    architecture="Qwen-Image-2.1",
    licence_note="the Qwen Research License allows research and evaluation, and no commercial use",
)
_QWEN3_VL = family.TextNetwork("text_encoder", "qwen3_vl_text", 151_936)
# Long enough for the prompts that the release's prompt enhancer writes; a source picture counts as one token.
_text = partial(
    family.PublishedText, "QwenImage21Pipeline", 4096, 1024, parameters=8_767_123_696, networks=(_QWEN3_VL,)
)
FAMILY = family.Family(
    name="qwen-image-2.1",
    network=f"{__package__}.network",
    presets={
        # The address of the weights means the last one.
        "qwen-image-2.1-edit": _edit(QwenImage21Config(edits=True), release=_release("Qwen/Qwen-Image-2.1")),
        "qwen-image-2.1": _preset(QwenImage21Config(), release=_release("Qwen/Qwen-Image-2.1")),
        "qwen-image-2.1-turbo": _preset(
            QwenImage21Config(),
            sampling=family.SamplingDefaults(1.0, 8),
            release=_release("Qwen/Qwen-Image-2.1-Turbo", architecture="Qwen-Image-2.1-Turbo", distilled=True),
        ),
        "qwen-image-2.1-tiny": _preset(_TINY),
        "qwen-image-2.1-edit-tiny": _edit(_TINY.model_copy(update={"edits": True})),
    },
    autoencoders={
        "qwen-image-2.1": family.PublishedAutoencoder(
            "AutoencoderKLQwenImage21",
            64,
            (1, 16, 16),
            parameters=337_740_404,
            config={"z_dim": 64},
            has_alpha=True,
        )
    },
    text_encoders={
        "qwen-image-2.1": _text(),
        "qwen-image-2.1-edit": _text(sees_pictures=True),
    },
    short_names={"qwen21": "qwen-image-2.1", "qwen-2.1": "qwen-image-2.1"},
)
