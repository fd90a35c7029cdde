"""Sizes of LTX-Video networks; torch-free."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from reelworks.models import family, family_file

RELEASE_LAYERS = family.layer_rules(__file__)


class LTXConfig(family.NetworkConfig):
    """Arguments of diffusers' LTXVideoTransformer3DModel; defaults are those of the 2B.

    `causal_times`: the first latent frame, which stands for one frame, lasts as long as one, as in releases since 0.9.5.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    conditioning: ClassVar[family.Conditioning] = family.Conditioning(
        frames=True, companions=family.Companions(("source",))
    )
    network: ClassVar[family.Network] = family.Network(
        "LTXVideoTransformer3DModel",
        ("transformer_blocks",),
        lora=family.LoraNames(RELEASE_LAYERS),
        sequence=family.SequenceSplit(plan="reelworks.models.sequence.shared_tokens"),
    )

    in_channels: family.LatentWidth = 128
    out_channels: family.LatentWidth = 128
    num_attention_heads: int = 32
    attention_head_dim: int = 64
    cross_attention_dim: int = 2048
    num_layers: int = 28
    caption_channels: family.TextWidth = 4096
    causal_times: bool = Field(default=False, exclude=True)


FAMILY = family_file.read(__package__, LTXConfig)
