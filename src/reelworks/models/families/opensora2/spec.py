"""Sizes, components and published releases of Open-Sora 2.0's networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.core.errors import UserError
from reelworks.models import family


class OpenSora2Config(Config):
    """Sizes of an Open-Sora 2.0 network, by upstream's names; defaults are those of the published 11B."""

    pictures_only: ClassVar[bool] = False

    in_channels: int = Field(default=64, gt=0)  # latent channels of a token
    vec_in_dim: int = Field(default=768, gt=0)  # width of the pooled text embedding
    context_in_dim: int = Field(default=4096, gt=0)  # width of text embeddings
    hidden_size: int = Field(default=3072, gt=0)  # width of a token in the network
    mlp_ratio: float = Field(default=4.0, gt=0)  # width of a block's MLP in units of `hidden_size`
    num_heads: int = Field(default=24, gt=0)
    depth: int = Field(default=19, gt=0)  # number of blocks with weights of their own for texts
    depth_single_blocks: int = Field(default=38, gt=0)
    axes_dim: tuple[int, int, int] = (16, 56, 56)  # widths of a head that (time, height, width) rotate
    theta: int = 10_000  # base of the rotations' frequencies
    qkv_bias: bool = True  # of the double blocks
    cond_embed: bool = True  # whether condition frames have channels of their own
    patch: Literal[1, 2] = 2  # latent elements per token along height and width

    @property
    def network(self) -> family.Network:
        """Names of the network; the release for each patch has a file name of its own."""
        return family.Network(
            "MMDiT",
            ("double_blocks", "single_blocks"),
            file="Open_Sora_v2.safetensors" if self.patch == 2 else "Open_Sora_v2_Video_DC_AE.safetensors",
            # Projections of attention lie in the single blocks themselves.
            attention_layers=r"single_blocks\.\d+\.(q_proj|k_proj|v_mlp|linear2)",
            sequence=family.SequenceSplit("num_heads", pads=True),
        )

    @property
    def patch_size(self) -> tuple[int, int, int]:
        """Latent elements per token along (time, height, width)."""
        return 1, self.patch, self.patch

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; empty captions are encoded.

        The autoencoder whose elements are tokens is not causal, so that a given picture is no clip's first latents.
        """
        return family.Conditioning(
            frames=self.cond_embed,
            frames_beside_noise=self.cond_embed,
            first_frame="alone" if self.cond_embed and self.patch == 1 else None,
        )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        if self.hidden_size % self.num_heads or sum(self.axes_dim) != self.head_dim:
            raise UserError(
                f"a head is {self.head_dim} wide, and positions rotate {sum(self.axes_dim)} of it",
                code="sizes-do-not-divide",
                field="model.hidden_size",
                value=self.hidden_size,
                remedy="choose another preset",
            )
        return self.model_copy(
            update={
                "in_channels": components.latent_channels * self.patch**2,
                "vec_in_dim": family.require_pooled(components),
                "context_in_dim": components.text_dim,
            }
        )


_TINY = OpenSora2Config(hidden_size=32, num_heads=2, depth=1, depth_single_blocks=2, axes_dim=(4, 6, 6))
# The autoencoder of the release, or that of the high-compression release, one of whose latent elements is a token. Both
# have T5-v1.1-XXL with 512 tokens and CLIP's pooled vector, the same as in FLUX.1.
_PARTS, _PARTS_OF_DC_AE = family.Parts("hunyuan-video", "flux"), family.Parts("video-dc-ae", "flux")
_preset = partial(
    family.Preset,
    sampling=family.SamplingDefaults(7.5, 50, image_guidance_scale=3.0),  # of Open-Sora's configs
    fps=24.0,
)
FAMILY = family.Family(
    name="opensora2",
    network=f"{__package__}.network",
    presets={
        "opensora2": _preset(
            OpenSora2Config(),
            parts=_PARTS,
            release=family.Release(
                "hpcai-tech/Open-Sora-v2",
                text="black-forest-labs/FLUX.1-dev",
                side=256,
                lines=256,
                num_frames=129,
                timestep_shift="opensora-2.0",
            ),
        ),
        "opensora2-dc-ae": _preset(
            OpenSora2Config(in_channels=128, patch=1),
            parts=_PARTS_OF_DC_AE,
            release=family.Release(
                "hpcai-tech/Open-Sora-v2-Video-DC-AE",
                text="black-forest-labs/FLUX.1-dev",
                side=768,
                lines=768,
                num_frames=128,
                timestep_shift="opensora-2.0",
            ),
        ),
        "opensora2-tiny": _preset(_TINY, parts=_PARTS),
        "opensora2-dc-ae-tiny": _preset(_TINY.model_copy(update={"patch": 1}), parts=_PARTS_OF_DC_AE),
    },
    autoencoders={
        # The first HunyuanVideo's.
        "hunyuan-video": family.PublishedAutoencoder(
            "AutoencoderKLHunyuanVideo",
            16,
            (4, 8, 8),
            (4, 1),
            parameters=246_478_803,
            config={"latent_channels": 16, "scaling_factor": 0.476986},
            file_config={},
            signs=("encoder.down_blocks.0.downsamplers.0.conv.conv.weight",),
            file="hunyuan_vae.safetensors",
            tiles=True,
        ),
        "video-dc-ae": family.PublishedAutoencoder(
            "AutoencoderVideoDC",
            128,
            (4, 32, 32),
            (4, 8),  # 4 frames become one latent frame, which decodes to a picture
            parameters=459_462_147,
            signs=("encoder.stages.3.op_list.0.context_module.main.qkv.conv.weight",),
            file="F32T4C128_AE.safetensors",
            tiles=True,
            module=f"{__package__}.autoencoder",
            std=1.0,  # as generation in the release; its config for training says 0.493, which its code does not use
        ),
    },
    short_names={
        "open-sora-2": "opensora2",
        "open-sora-2.0": "opensora2",
        "open-sora-v2": "opensora2",
        "open-sora-2-dc-ae": "opensora2-dc-ae",
    },
)
