"""Sizes, components and published releases of MiniMax-H3 networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models import family

SOUND_CHANNELS = 2  # left and right, which the sound autoencoder encodes apart
_RELEASE_LAYERS = (
    *(
        rule
        for own, release in (
            ("token_refiner.refiner_blocks", "token_refiner.blocks"),
            ("transformer_blocks", "blocks"),
        )
        for rule in (
            *family.release_blocks(
                own,
                release,
                {
                    family.QKV: "attn.qkv_proj",
                    "attn.to_out.0": "attn.out_proj",
                    "ff.net.2": "mlp.fc2",
                    "adaln_proj.linear": "adaln_proj.linear",
                },
            ),
            # The gate is above the value in the release, below it in diffusers.
            family.KeyRule(f"{own}.N.ff.net.0.proj", f"{release}.N.mlp.fc1", swapped=True),
        )
    ),
    family.KeyRule("proj_in", "video_patch_proj"),
    family.KeyRule("audio_proj_in", "audio_patch_proj"),
    family.KeyRule("context_embedder", "condition_proj"),
    family.KeyRule("time_embedder.linear_1", "time_embedder.proj_in"),
    family.KeyRule("time_embedder.linear_2", "time_embedder.proj_out"),
    family.KeyRule("norm_out.linear", "final_layer.adaln_proj.linear"),
    family.KeyRule("proj_out", "final_layer.video_out"),
    family.KeyRule("audio_proj_out", "final_layer.audio_out"),
)


class MiniMaxH3Config(Config):
    """Arguments of diffusers' MiniMaxH3Transformer3DModel; defaults are the published ones.

    `sound`: clips are trained with their sound.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = False

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
    sound: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; each token has a time of its own."""
        return family.Conditioning(frames=True, sound=self.sound)

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        return family.Network(
            "MiniMaxH3Transformer3DModel",
            ("token_refiner.refiner_blocks", "transformer_blocks"),
            release_layers=_RELEASE_LAYERS,
            without_gradient=() if self.sound else ("audio_proj_",),
            caption_multiple=1,
            clip_by_clip=True,
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        features = components.sound_features or SOUND_CHANNELS * self.audio_in_channels
        widths = {"in_channels": components.latent_channels, "text_dim": components.text_dim}
        return self.model_copy(update=widths | {"audio_in_channels": features // SOUND_CHANNELS})


_TINY = MiniMaxH3Config(
    num_attention_heads=2,
    attention_head_dim=16,
    hidden_size=32,
    num_layers=2,
    num_refiner_layers=1,
    ffn_dim=64,
    audio_in_channels=2,
    freq_dim=32,
    time_embed_hidden_dim=32,
    time_embed_dim=16,
    rope_freq_dim=2,
)
# Its pipeline samples at 50 points of time, the last one clean, and without guidance.
_preset = partial(
    family.Preset, parts=family.Parts("minimax-h3", "minimax-h3"), sampling=family.SamplingDefaults(1.0, 49), fps=24.0
)
_RELEASE = family.Release(
    "MiniMaxAI/MiniMax-H3",
    side=1024,
    lines=768,
    num_frames=124,
    timestep_shift=12.0,
    sound_timestep_shift=3.0,
    distilled=True,  # guidance
    architecture="minimax-h3",
    licence_note="the MiniMax-H3 Community License gives no rights in the European Union, the United Kingdom, the "
    "Republic of Korea and the United States; there, MiniMax must permit the use",
)
_QWEN3_VL = family.TextNetwork("text_encoder", "qwen3_vl_text", 151_936)
FAMILY = family.Family(
    name="minimax-h3",
    network=f"{__package__}.network",
    presets={
        # The address of the weights means the last one.
        "minimax-h3-sound": _preset(MiniMaxH3Config(sound=True), sound="minimax-h3", release=_RELEASE),
        "minimax-h3": _preset(MiniMaxH3Config(), release=_RELEASE),
        "minimax-h3-tiny": _preset(_TINY),
        "minimax-h3-sound-tiny": _preset(_TINY.model_copy(update={"sound": True}), sound="minimax-h3"),
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
    sound_encoders={
        "minimax-h3": family.PublishedSound(32_000, SOUND_CHANNELS, 800, 64, 151_321_489, module=f"{__package__}.sound")
    },
    short_names={"h3": "minimax-h3", "minimax": "minimax-h3"},
)
