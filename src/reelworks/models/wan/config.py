"""Sizes of Wan networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models.family import ComponentShapes, Conditioning, Network

MASK_CHANNELS = 4  # one for each frame behind a latent frame


class WanConfig(Config):
    """Arguments of diffusers' WanTransformer3DModel; defaults are those of the 1.3B of Wan 2.1.

    `experts_boundary`: two networks of these sizes share the timesteps, and one begins here.
    `expand_timesteps`: every frame has a time of its own, 0 where it is given, as in the 5B of Wan 2.2.
    `first_frame`: the first frame comes in channels of its own, with a mask; as CLIP sees it too where `image_dim`
    says how wide that is.
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
    image_dim: int | None = None
    added_kv_proj_dim: int | None = None
    expand_timesteps: bool = Field(default=False, exclude=True)
    first_frame: bool = Field(default=False, exclude=True)
    experts_boundary: float | None = Field(default=None, exclude=True)

    @property
    def conditioning(self) -> Conditioning:
        """Captions of no words are encoded."""
        return Conditioning(
            frames=self.expand_timesteps,
            first_frame="grey" if self.first_frame else None,
            image_encoder=None if self.image_dim is None else "clip",
            image_dim=self.image_dim or 0,
        )

    def fit(self, neighbours: ComponentShapes) -> Self:
        """Take the widths of the neighbours."""
        channels = neighbours.latent_channels
        return self.model_copy(
            update={
                "in_channels": 2 * channels + MASK_CHANNELS if self.first_frame else channels,
                "out_channels": channels,
                "text_dim": neighbours.text_dim,
            }
        )


_LARGE = WanConfig(num_attention_heads=40, ffn_dim=13824, num_layers=40)
_TINY = WanConfig(
    num_attention_heads=2, attention_head_dim=12, freq_dim=32, ffn_dim=64, num_layers=2, rope_max_seq_len=64
)
PRESETS: dict[str, WanConfig] = {
    "wan-2.1-1.3b": WanConfig(),
    "wan-2.1-14b": _LARGE,
    "wan-2.2-14b": _LARGE.model_copy(update={"experts_boundary": 875.0}),
    "wan-2.2-5b": WanConfig(
        num_attention_heads=24, ffn_dim=14336, in_channels=48, out_channels=48, expand_timesteps=True
    ),
    "wan-2.1-i2v-14b": _LARGE.model_copy(
        update={"in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120, "first_frame": True}
    ),
    "wan-2.2-i2v-14b": _LARGE.model_copy(
        update={"in_channels": 36, "first_frame": True, "experts_boundary": 900.0}
    ),
    "wan-tiny": _TINY.model_copy(update={"expand_timesteps": True}),
    "wan-2.2-tiny": _TINY.model_copy(update={"experts_boundary": 875.0, "ffn_dim": 48}),
    "wan-i2v-tiny": _TINY.model_copy(
        update={"image_dim": 16, "added_kv_proj_dim": 24, "first_frame": True, "in_channels": 36}
    ),
}
