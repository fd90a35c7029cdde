"""Sizes of Wan networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models.family import Conditioning, Neighbours, Network


class WanConfig(Config):
    """Arguments of diffusers' WanTransformer3DModel; defaults are those of the 1.3B of Wan 2.1.

    `expand_timesteps`: every frame has a time of its own, 0 where it is given, as in the 5B of Wan 2.2.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = False
    network: ClassVar[Network] = Network("WanTransformer3DModel", ("blocks",))

    num_attention_heads: int = 12
    attention_head_dim: int = 128
    in_channels: int = 16
    out_channels: int = 16
    text_dim: int = 4096
    freq_dim: int = 256
    ffn_dim: int = 8960
    num_layers: int = 30
    rope_max_seq_len: int = 1024
    expand_timesteps: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> Conditioning:
        """Captions of no words are encoded."""
        return Conditioning(frames=self.expand_timesteps)

    def fit(self, neighbours: Neighbours) -> Self:
        """Take the widths of the neighbours."""
        channels = neighbours.latent_channels
        return self.model_copy(
            update={"in_channels": channels, "out_channels": channels, "text_dim": neighbours.text_dim}
        )


_LARGE = WanConfig(num_attention_heads=40, ffn_dim=13824, num_layers=40)
PRESETS: dict[str, WanConfig] = {
    "wan-2.1-1.3b": WanConfig(),
    "wan-2.1-14b": _LARGE,
    "wan-2.2-14b": _LARGE,  # two experts of one size; `model.weights` says which
    "wan-2.2-5b": WanConfig(
        num_attention_heads=24, ffn_dim=14336, in_channels=48, out_channels=48, expand_timesteps=True
    ),
    "wan-tiny": WanConfig(
        num_attention_heads=2,
        attention_head_dim=12,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
        rope_max_seq_len=64,
        expand_timesteps=True,
    ),
}
