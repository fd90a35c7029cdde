"""Sizes, components and published releases of MiniMax-H3 networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models import family


class MiniMaxH3Config(Config):
    """Arguments of diffusers' MiniMaxH3Transformer3DModel; defaults are the published ones."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = False
    # Tokens have times of their own.
    conditioning: ClassVar[family.Conditioning] = family.Conditioning(frames=True)
    network: ClassVar[family.Network] = family.Network(
        "MiniMaxH3Transformer3DModel",
        ("token_refiner.refiner_blocks", "transformer_blocks"),
        without_gradient=("audio_proj_",),  # clips are trained without sound
        clip_by_clip=True,
    )

    num_attention_heads: int = 56
    attention_head_dim: int = 128
    hidden_size: int = 5376
    num_layers: int = 50
    num_refiner_layers: int = 2
    ffn_dim: int = 14336
    in_channels: int = 24
    audio_in_channels: int = 32
    text_dim: int = 5120
    freq_dim: int = 256
    time_embed_hidden_dim: int = 5376
    time_embed_dim: int = 2688
    rope_freq_dim: int = 16

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        return self.model_copy(update={"in_channels": components.latent_channels, "text_dim": components.text_dim})


_TINY = MiniMaxH3Config(
    num_attention_heads=2,
    attention_head_dim=16,
    hidden_size=32,
    num_layers=2,
    num_refiner_layers=1,
    ffn_dim=64,
    audio_in_channels=4,
    freq_dim=32,
    time_embed_hidden_dim=32,
    time_embed_dim=16,
    rope_freq_dim=2,
)
# Its pipeline samples at 50 points of time, the last one clean, and without guidance.
_preset = partial(
    family.Preset, parts=family.Parts("minimax-h3", "minimax-h3"), sampling=family.SamplingDefaults(1.0, 49), fps=24.0
)
_QWEN3_VL = family.TextNetwork("text_encoder", "qwen3_vl_text", 151_936)
FAMILY = family.Family(
    name="minimax-h3",
    network=f"{__package__}.network",
    presets={
        "minimax-h3": _preset(
            MiniMaxH3Config(),
            release=family.Release(
                "MiniMaxAI/MiniMax-H3",
                side=1024,
                lines=768,
                num_frames=124,
                timestep_shift=12.0,
                distilled=True,  # guidance
                licence_note="the MiniMax-H3 Community License gives no rights in the European Union, the United "
                "Kingdom, the Republic of Korea and the United States; there, MiniMax must permit the use",
            ),
        ),
        "minimax-h3-tiny": _preset(_TINY),
    },
    autoencoders={
        "minimax-h3": family.PublishedAutoencoder(
            "AutoencoderKLMiniMaxH3",
            24,
            (4, 16, 16),
            (17, 22),
            chunk_frames=17,
            imagenet_pixels=True,
            parameters=2_603_868_984,
        )
    },
    text_encoders={
        "minimax-h3": family.PublishedText(
            "MiniMaxH3ModularPipeline", 5120, 512, parameters=33_357_390_064, networks=(_QWEN3_VL,)
        ),
    },
    short_names={"h3": "minimax-h3", "minimax": "minimax-h3"},
)
