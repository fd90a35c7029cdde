"""Sizes of Wan networks; torch-free."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from reelworks.models import family, family_file

MASK_CHANNELS = 4  # one for each frame of a latent frame
_LORA_NAMES = family.LoraNames(family.layer_rules(__file__))


class WanConfig(family.NetworkConfig):
    """Arguments of diffusers' WanTransformer3DModel; defaults are those of the 1.3B of Wan 2.1.

    `expand_timesteps`: every frame has its own time, 0 for a condition frame, as in the 5B of Wan 2.2.
    `first_frame`: the first frame has its own input channels, with a mask; if `image_dim` is set, its CLIP
    embedding of that width is an input too.
    `source`: the source of an edit has its own input channels, behind those of the noise, as in Lucy Edit.
    `last_frame`: the last frame is given in the same channels and, if `image_dim` is set, embedded with the first;
    `pos_embed_seq_len` counts the tokens of both.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    network: ClassVar[family.Network] = family.Network(
        "WanTransformer3DModel",
        ("blocks",),
        lora=_LORA_NAMES,
        files=family.NetworkFiles(renamed_keys={"img_emb.emb_pos": "condition_embedder.image_embedder.pos_embed"}),
        sequence=family.SequenceSplit(pads=True, divided=f"{__package__}.divided_tokens"),
    )

    num_attention_heads: int = 12
    attention_head_dim: int = 128
    in_channels: int = 16
    out_channels: family.LatentWidth = 16
    text_dim: family.TextWidth = 4096
    freq_dim: int = 256
    ffn_dim: int = 8960
    num_layers: int = 30
    rope_max_seq_len: int = 1024
    image_dim: int | None = None
    added_kv_proj_dim: int | None = None
    pos_embed_seq_len: int | None = None
    expand_timesteps: bool = Field(default=False, exclude=True)
    first_frame: bool = Field(default=False, exclude=True)
    last_frame: bool = Field(default=False, exclude=True)
    source: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        if self.source:
            return family.Conditioning(companions=family.Companions(("source",), ("source",)))
        return family.Conditioning(
            frames=self.expand_timesteps,
            shown=family.ShownFrames(
                first="grey" if self.first_frame else None,
                last=self.last_frame,
                encoder=None if self.image_dim is None else "clip",
                width=self.image_dim or 0,
            ),
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        channels = components.latent_channels
        in_channels = 2 * channels if self.source else channels
        widths = {"in_channels": 2 * channels + MASK_CHANNELS if self.first_frame else in_channels}
        return super().fit(components).model_copy(update=widths)


class WanVaceConfig(WanConfig):
    """Arguments of diffusers' WanVACETransformer3DModel; defaults are those of the 1.3B of Wan 2.1.

    Its control runs through blocks of its own, whose outputs are added behind the `vace_layers`. Reference pictures are
    frames before those of the clip.
    """

    network: ClassVar[family.Network] = family.Network(
        "WanVACETransformer3DModel", ("vace_blocks", "blocks"), lora=_LORA_NAMES
    )

    vace_layers: tuple[int, ...] = tuple(range(0, 30, 2))
    vace_in_channels: int = 96

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        taken = family.Companions(("control", "source", "mask"), most_sources=4, control_parts=True)
        return family.Conditioning(companions=taken)

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        height, width = components.latent_stride
        update = {"vace_in_channels": 2 * components.latent_channels + height * width}
        return super().fit(components).model_copy(update=update)


FAMILY = family_file.read(__package__, WanConfig, WanVaceConfig)
