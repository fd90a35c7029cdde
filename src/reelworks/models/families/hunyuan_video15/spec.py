"""Sizes, components and published releases of HunyuanVideo 1.5 networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models import family

_RELEASE_LAYERS = (
    *family.release_blocks("transformer_blocks", "double_blocks", family.TWO_STREAMS),
    *family.release_blocks(
        "context_embedder.token_refiner.refiner_blocks",
        "txt_in.individual_token_refiner.blocks",
        {
            family.QKV: "self_attn.qkv",
            "attn.to_out.0": "self_attn.proj",
            "ff.net.0.proj": "mlp.0",
            "ff.net.2": "mlp.2",
            "norm_out.linear": "adaLN_modulation.1",
        },
    ),
    *(
        family.KeyRule(f"{own}.linear_{i}", f"{release}.{side}_layer")
        for own, release in (
            ("time_embed.timestep_embedder", "time_in"),
            ("context_embedder.time_text_embed.timestep_embedder", "txt_in.t_embedder"),
            ("context_embedder.time_text_embed.text_embedder", "txt_in.c_embedder"),
        )
        for i, side in ((1, "in"), (2, "out"))
    ),
    family.KeyRule("context_embedder.proj_in", "txt_in.input_embedder"),
    *(family.KeyRule(f"context_embedder_2.linear_{i}", f"byt5_in.fc{i}") for i in (1, 2, 3)),
    family.KeyRule("image_embedder.linear_1", "vision_in.proj.1"),
    family.KeyRule("image_embedder.linear_2", "vision_in.proj.3"),
    *family.FINAL_LAYERS,
)


class HunyuanVideo15Config(Config):
    """Arguments of diffusers' HunyuanVideo15Transformer3DModel; defaults are the published ones.

    The input has channels for a condition picture and its mask, which are zeros unless `first_frame` is set.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    pictures_only: ClassVar[bool] = False

    in_channels: int = 65
    out_channels: int = 32
    num_attention_heads: int = 16
    attention_head_dim: int = 128
    num_layers: int = 54
    num_refiner_layers: int = 2
    text_embed_dim: int = 3584
    text_embed_2_dim: int = 1472
    image_embed_dim: int = 1152
    rope_axes_dim: tuple[int, int, int] = (16, 56, 56)
    first_frame: bool = Field(default=False, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded."""
        if not self.first_frame:
            return family.Conditioning()
        return family.Conditioning(first_frame="alone", image_encoder="siglip", image_dim=self.image_embed_dim)

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        # The last block's results for texts are not used.
        parts = ("ff_context", "attn.to_add_out", "attn.norm_added_q", "attn.add_q_proj")
        unused = ["context_embedder_2.", *(f"transformer_blocks.{self.num_layers - 1}.{part}" for part in parts)]
        if not self.first_frame:
            unused.append("image_embedder.")
        return family.Network(
            "HunyuanVideo15Transformer3DModel",
            ("transformer_blocks",),
            without_gradient=tuple(unused),
            release_layers=_RELEASE_LAYERS,
            sequence=family.SequenceSplit(pads=True, divided=f"{__package__}.divided_tokens"),
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        channels = components.latent_channels
        return self.model_copy(
            update={"in_channels": 2 * channels + 1, "out_channels": channels, "text_embed_dim": components.text_dim}
        )


_TINY = HunyuanVideo15Config(
    num_attention_heads=2,
    attention_head_dim=16,
    num_layers=2,
    num_refiner_layers=1,
    text_embed_2_dim=8,
    image_embed_dim=16,
    rope_axes_dim=(4, 6, 6),
)
# Sampling defaults and frame rate of its release.
_preset = partial(
    family.Preset,
    parts=family.Parts("hunyuan-video-1.5", "hunyuan-video-1.5"),
    sampling=family.SamplingDefaults(6.0, 50),
    fps=24.0,
)
_release = partial(
    family.Release,
    side=640,
    lines=480,
    num_frames=81,
    licence_note="the Tencent Hunyuan Community License does not apply in the European Union, the United Kingdom and "
    "South Korea, and gives no rights there",
)
FAMILY = family.Family(
    name="hunyuan-video-1.5",
    network=f"{__package__}.network",
    presets={
        "hunyuan-video-1.5": _preset(
            HunyuanVideo15Config(), release=_release("hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v")
        ),
        "hunyuan-video-1.5-i2v": _preset(
            HunyuanVideo15Config(first_frame=True),
            release=_release("hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_i2v"),
        ),
        "hunyuan-video-1.5-tiny": _preset(_TINY),
        "hunyuan-video-1.5-i2v-tiny": _preset(_TINY.model_copy(update={"first_frame": True})),
    },
    autoencoders={
        "hunyuan-video-1.5": family.PublishedAutoencoder(
            "AutoencoderKLHunyuanVideo15",
            32,
            (4, 16, 16),
            (4, 1),
            parameters=1_260_634_115,
            config={"latent_channels": 32, "scaling_factor": 1.03682},
            one_by_one=True,  # its attention mask fits one clip only
        )
    },
    text_encoders={
        "hunyuan-video-1.5": family.PublishedText(
            "HunyuanVideo15Pipeline",
            3584,
            1000,
            parameters=7_288_276_608,
            networks=(family.QWEN2_5_VL,),
            asks_autoencoder="AutoencoderKLHunyuanVideo15",
        )
    },
    short_names={"hunyuan": "hunyuan-video-1.5"},
)
