"""Sizes of MiniMax-H3 networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from reelworks.models import family, family_file

SOUND_CHANNELS = 2  # left and right, which the sound autoencoder encodes apart


class MiniMaxH3Config(family.NetworkConfig):
    """Arguments of diffusers' MiniMaxH3Transformer3DModel; defaults are the published ones.

    `sound`: clips are trained with their sound. `first_frame`, `last_frame`: these are shown besides, as pictures of their
    own. `references`: pictures and clips are shown besides, and with `sound` those of the clips and others are heard, for
    which the release has a second network; `reference_side` is the shorter side of such pictures.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)

    num_attention_heads: int = 56
    attention_head_dim: int = 128
    hidden_size: int = 5376
    num_layers: int = 50
    num_refiner_layers: int = 2
    ffn_dim: int = 14336
    in_channels: family.LatentWidth = 24
    audio_in_channels: int = 32
    text_dim: family.TextWidth = 5120
    freq_dim: int = 256
    time_embed_hidden_dim: int = 5376
    time_embed_dim: int = 2688
    rope_freq_dim: int = 16
    sound: bool = Field(default=False, exclude=True)
    first_frame: bool = Field(default=False, exclude=True)
    last_frame: bool = Field(default=False, exclude=True)
    references: bool = Field(default=False, exclude=True)
    reference_side: int = Field(default=2048, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; each token has a time of its own."""
        shows = self.first_frame or self.references
        return family.Conditioning(
            frames=not shows,
            shown=family.ShownFrames("alone" if self.first_frame else None, last=self.last_frame),
            companions=family.Companions(
                ("source",), ("source",), most_sources=12, picture_side=self.reference_side, sounds=self.sound
            )
            if self.references
            else family.Companions(),
            sound=self.sound,
            given_noise=0.001 if shows else 0.0,
        )

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        return family.Network(
            "MiniMaxH3Transformer3DModel",
            ("token_refiner.refiner_blocks", "transformer_blocks"),
            without_gradient=() if self.sound else ("audio_proj_",),
            files=family.NetworkFiles(folder="transformer_ref" if self.references else None),
            lora=family.LoraNames(family.layer_rules(__file__)),
            passes=family.PassRules(caption_multiple=1, clip_by_clip=True),
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        features = components.sound_features or SOUND_CHANNELS * self.audio_in_channels
        return super().fit(components).model_copy(update={"audio_in_channels": features // SOUND_CHANNELS})


FAMILY = family_file.read(__package__, MiniMaxH3Config)
