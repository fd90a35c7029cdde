"""Sizes of Open-Sora 2.0's networks; torch-free."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from reelworks.core.errors import UserError
from reelworks.models import family, family_file


class OpenSora2Config(family.NetworkConfig):
    """Sizes of an Open-Sora 2.0 network, by upstream's names; defaults are those of the published 11B."""

    in_channels: int = Field(default=64, gt=0)  # latent channels of a token
    vec_in_dim: family.PooledWidth = Field(default=768, gt=0)  # width of the pooled text embedding
    context_in_dim: family.TextWidth = Field(default=4096, gt=0)  # width of text embeddings
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
            files=family.NetworkFiles(
                file="Open_Sora_v2.safetensors" if self.patch == 2 else "Open_Sora_v2_Video_DC_AE.safetensors"
            ),
            # Projections of attention lie in the single blocks themselves.
            lora=family.LoraNames(attention=r"single_blocks\.\d+\.(q_proj|k_proj|v_mlp|linear2)"),
            sequence=family.SequenceSplit("num_heads", ("depth", "depth_single_blocks"), pads=True),
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
            shown=family.ShownFrames("alone" if self.cond_embed and self.patch == 1 else None),
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
        return super().fit(components).model_copy(update={"in_channels": components.latent_channels * self.patch**2})


FAMILY = family_file.read(__package__, OpenSora2Config)
