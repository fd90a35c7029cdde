"""Sizes, components and published releases of Wan networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models import family

MASK_CHANNELS = 4  # one for each frame of a latent frame
_ATTENTIONS = {
    f"{own}.{part}": f"{release}.{layer}"
    for own, release in (("attn1", "self_attn"), ("attn2", "cross_attn"))
    for part, layer in (("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "o"))
}
# Layers for the embedding of a picture, beside those for the caption.
_OF_PICTURES = {"attn2.add_k_proj": "cross_attn.k_img", "attn2.add_v_proj": "cross_attn.v_img"}
_FEED_FORWARD = {"ffn.net.0.proj": "ffn.0", "ffn.net.2": "ffn.2"}
_RELEASE_LAYERS = (
    *family.release_blocks("blocks", "blocks", {**_ATTENTIONS, **_OF_PICTURES, **_FEED_FORWARD}),
    *(
        family.KeyRule(f"condition_embedder.{own}_embedder.linear_{i}", f"{own}_embedding.{2 * i - 2}")
        for own in ("time", "text")
        for i in (1, 2)
    ),
    family.KeyRule("condition_embedder.time_proj", "time_projection.1"),
    family.KeyRule("condition_embedder.image_embedder.ff.net.0.proj", "img_emb.proj.1"),
    family.KeyRule("condition_embedder.image_embedder.ff.net.2", "img_emb.proj.3"),
    family.KeyRule("proj_out", "head.head"),
)


_VACE_LAYERS = (
    *family.release_blocks(
        "vace_blocks",
        "vace_blocks",
        {**_ATTENTIONS, **_FEED_FORWARD, "proj_in": "before_proj", "proj_out": "after_proj"},
    ),
    *_RELEASE_LAYERS,
)


class WanConfig(Config):
    """Arguments of diffusers' WanTransformer3DModel; defaults are those of the 1.3B of Wan 2.1.

    `expand_timesteps`: every frame has its own time, 0 for a condition frame, as in the 5B of Wan 2.2.
    `first_frame`: the first frame has its own input channels, with a mask; if `image_dim` is set, its CLIP
    embedding of that width is an input too.
    `source`: the source of an edit has its own input channels, behind those of the noise, as in Lucy Edit.
    `last_frame`: the last frame is given in the same channels and, if `image_dim` is set, embedded with the first;
    `pos_embed_seq_len` counts the tokens of both.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = False
    network: ClassVar[family.Network] = family.Network(
        "WanTransformer3DModel",
        ("blocks",),
        release_layers=_RELEASE_LAYERS,
        sequence=family.SequenceSplit(pads=True, divided=f"{__package__}.divided_tokens"),
    )

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
    pos_embed_seq_len: int | None = None
    expand_timesteps: bool = Field(default=False, exclude=True)
    first_frame: bool = Field(default=False, exclude=True)
    last_frame: bool = Field(default=False, exclude=True)
    source: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        if self.source:
            return family.Conditioning(takes=("source",), needs=("source",))
        return family.Conditioning(
            frames=self.expand_timesteps,
            first_frame="grey" if self.first_frame else None,
            last_frame=self.last_frame,
            image_encoder=None if self.image_dim is None else "clip",
            image_dim=self.image_dim or 0,
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        channels = components.latent_channels
        in_channels = 2 * channels if self.source else channels
        return self.model_copy(
            update={
                "in_channels": 2 * channels + MASK_CHANNELS if self.first_frame else in_channels,
                "out_channels": channels,
                "text_dim": components.text_dim,
            }
        )


class WanVaceConfig(WanConfig):
    """Arguments of diffusers' WanVACETransformer3DModel; defaults are those of the 1.3B of Wan 2.1.

    Its control runs through blocks of its own, whose outputs are added behind the `vace_layers`. Reference pictures are
    frames before those of the clip.
    """

    network: ClassVar[family.Network] = family.Network(
        "WanVACETransformer3DModel", ("vace_blocks", "blocks"), release_layers=_VACE_LAYERS
    )

    vace_layers: tuple[int, ...] = tuple(range(0, 30, 2))
    vace_in_channels: int = 96

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        return family.Conditioning(takes=("control", "source", "mask"), most_sources=4, control_parts=True)

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        height, width = components.latent_stride
        update = {"vace_in_channels": 2 * components.latent_channels + height * width}
        return super().fit(components).model_copy(update=update)


_LARGE = WanConfig(num_attention_heads=40, ffn_dim=13824, num_layers=40)
_5B = WanConfig(num_attention_heads=24, ffn_dim=14336, in_channels=48, out_channels=48, expand_timesteps=True)
_EDIT = {"source": True, "in_channels": 96}
_I2V = _LARGE.model_copy(update={"in_channels": 36, "first_frame": True})
_I2V_CLIP = _I2V.model_copy(update={"image_dim": 1280, "added_kv_proj_dim": 5120})
_BOTH_ENDS = {"last_frame": True, "pos_embed_seq_len": 2 * family.IMAGE_ENCODERS["clip"].tokens}
_TINY = WanConfig(
    num_attention_heads=2, attention_head_dim=12, freq_dim=32, ffn_dim=64, num_layers=2, rope_max_seq_len=64
)
_TINY_I2V = _TINY.model_copy(update={"image_dim": 16, "added_kv_proj_dim": 24, "first_frame": True, "in_channels": 36})
_SIGNS = ("encoder.norm_out.gamma", "encoder.middle.0.residual.0.gamma")
# Qwen-Image's autoencoder was derived from this one and shares its encoder.
_PARTS = family.Parts("wan-2.1", "wan", same_latents=("qwen-image",))
# Frame rates of Wan's configs (`sample_fps`): 16, and 24 for the 5B of Wan 2.2.
_preset = partial(family.Preset, parts=_PARTS, sampling=family.SamplingDefaults(5.0, 50), fps=16.0)
_release = partial(family.Release, side=640, lines=480, num_frames=81)
_of_5b = partial(_preset, parts=_PARTS._replace(autoencoder="wan-2.2"), fps=24.0)
_lucy = partial(
    _release, licence_note="the Lucy Edit Dev Model Non-Commercial License allows no commercial use of the model"
)
_autoencoder = partial(family.PublishedAutoencoder, "AutoencoderKLWan", frame_rule=(4, 1), signs=_SIGNS)
_UMT5 = family.TextNetwork("text_encoder", "umt5", 256_384)
FAMILY = family.Family(
    name="wan",
    network=f"{__package__}.network",
    presets={
        "wan-2.1-1.3b": _preset(
            WanConfig(), release=_release("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", architecture="wan2.1")
        ),
        "wan-2.1-14b": _preset(_LARGE, release=_release("Wan-AI/Wan2.1-T2V-14B-Diffusers", architecture="wan2.1")),
        "wan-2.2-14b": _preset(_LARGE, release=_release("Wan-AI/Wan2.2-T2V-A14B-Diffusers"), switch_timestep=875.0),
        "wan-2.2-5b": _of_5b(_5B, release=_release("Wan-AI/Wan2.2-TI2V-5B-Diffusers")),
        "lucy-edit-5b": _of_5b(_5B.model_copy(update=_EDIT), release=_lucy("decart-ai/Lucy-Edit-Dev")),
        "lucy-edit-1.1-5b": _of_5b(_5B.model_copy(update=_EDIT), release=_lucy("decart-ai/Lucy-Edit-1.1-Dev")),
        "wan-2.1-vace-1.3b": _preset(WanVaceConfig(), release=_release("Wan-AI/Wan2.1-VACE-1.3B-diffusers")),
        "wan-2.1-vace-14b": _preset(
            WanVaceConfig(**_LARGE.model_dump(), vace_layers=tuple(range(0, 40, 5))),
            release=_release("Wan-AI/Wan2.1-VACE-14B-diffusers", lines=720, side=960),
        ),
        "wan-2.1-i2v-14b": _preset(
            _I2V_CLIP,
            release=_release("Wan-AI/Wan2.1-I2V-14B-480P-Diffusers"),
        ),
        "wan-2.1-flf2v-14b": _preset(
            _I2V_CLIP.model_copy(update=_BOTH_ENDS),
            release=_release("Wan-AI/Wan2.1-FLF2V-14B-720P-diffusers", side=960, lines=720),
        ),
        # The weights of the next one, which take a last frame too.
        "wan-2.2-flf2v-14b": _preset(
            _I2V.model_copy(update={"last_frame": True}),
            release=_release("Wan-AI/Wan2.2-I2V-A14B-Diffusers"),
            switch_timestep=900.0,
        ),
        "wan-2.2-i2v-14b": _preset(_I2V, release=_release("Wan-AI/Wan2.2-I2V-A14B-Diffusers"), switch_timestep=900.0),
        "wan-tiny": _preset(_TINY.model_copy(update={"expand_timesteps": True})),
        "wan-edit-tiny": _preset(
            _TINY.model_copy(update={"expand_timesteps": True, "source": True, "in_channels": 32})
        ),
        "wan-2.2-tiny": _preset(_TINY.model_copy(update={"ffn_dim": 48}), switch_timestep=875.0),
        "wan-i2v-tiny": _preset(_TINY_I2V),
        "wan-vace-tiny": _preset(WanVaceConfig(**_TINY.model_dump(), vace_layers=(0,))),
        "wan-flf2v-tiny": _preset(_TINY_I2V.model_copy(update=_BOTH_ENDS)),
    },
    autoencoders={
        "wan-2.1": _autoencoder(16, (4, 8, 8), parameters=126_892_531, config={"z_dim": 16}, file_config={}),
        "wan-2.2": _autoencoder(48, (4, 16, 16), parameters=704_688_668, config={"z_dim": 48}),
    },
    text_encoders={"wan": family.PublishedText("WanPipeline", 4096, 512, parameters=5_680_910_336, networks=(_UMT5,))},
    short_names={
        "lucy-edit": "lucy-edit-1.1-5b",
        "wan": "wan-2.1-1.3b",
        "wan-2.1": "wan-2.1-1.3b",
        "wan-2.2": "wan-2.2-5b",
        "wan-flf2v": "wan-2.1-flf2v-14b",
        "wan-i2v": "wan-2.1-i2v-14b",
        "wan-vace": "wan-2.1-vace-1.3b",
        "vace": "wan-2.1-vace-1.3b",
    },
)
