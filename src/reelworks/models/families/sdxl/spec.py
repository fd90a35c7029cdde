"""Sizes of the UNets of Stable Diffusion XL and 1; torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from reelworks.models import family, family_file

_OUTSIDE_BLOCKS = (
    family.KeyRule("time_embedding.linear_1", "time_embed.0"),
    family.KeyRule("time_embedding.linear_2", "time_embed.2"),
    family.KeyRule("add_embedding.linear_1", "label_emb.0.0"),  # of sizes, in SDXL
    family.KeyRule("add_embedding.linear_2", "label_emb.0.2"),
    family.KeyRule("conv_in", "input_blocks.0.0"),
    family.KeyRule("conv_out", "out.2"),
)


class UNetConfig(family.NetworkConfig):
    """Arguments of diffusers' UNet2DConditionModel that Stable Diffusion XL and 1 have in common."""

    pictures_only: ClassVar[bool] = True
    conditioning: ClassVar[family.Conditioning] = family.Conditioning(
        objectives=("epsilon", "v-prediction"), crops=True
    )
    kohya_names: ClassVar[Literal["release", "diffusers"]] = "release"  # of layers in files of kohya's scripts

    sample_size: int
    in_channels: family.LatentWidth = 4
    out_channels: family.LatentWidth = 4
    down_block_types: tuple[str, ...]
    up_block_types: tuple[str, ...]
    block_out_channels: tuple[int, ...]
    layers_per_block: int = 2
    norm_num_groups: int = 32
    cross_attention_dim: family.TextWidth
    transformer_layers_per_block: tuple[int, ...]
    attention_head_dim: tuple[int, ...]  # which are numbers of heads
    use_linear_projection: bool

    @property
    def patch_size(self) -> tuple[int, int, int]:
        """Latent elements per token: the factor by which the levels downscale latents."""
        downscale = int(2 ** (len(self.block_out_channels) - 1))
        return 1, downscale, downscale

    @property
    def network(self) -> family.Network:
        """Names of the network's class, blocks, parameters and files."""
        return family.Network(
            "UNet2DConditionModel",
            ("down_blocks", "up_blocks"),
            part="unet",
            lora=family.LoraNames((*_OUTSIDE_BLOCKS, *self._release_blocks()), kohya=self.kohya_names),
            passes=family.PassRules(blocks_see_shapes=True),
        )

    def _release_blocks(self) -> Iterator[family.KeyRule]:
        """Yield the rules of all blocks; the release numbers the layers of all levels in sequence."""
        per_level = self.layers_per_block + 1
        for level in range(len(self.block_out_channels)):
            for layer in range(per_level):
                place = per_level * level + layer
                yield from _block(f"down_blocks.{level}", layer, f"input_blocks.{place + 1}")
                yield from _block(f"up_blocks.{level}", layer, f"output_blocks.{place}")
            last = per_level * (level + 1)
            # Beside the last layer of a level, behind its attention if it has one.
            number = 2 if self.up_block_types[level].startswith("CrossAttn") else 1
            yield family.KeyRule(f"down_blocks.{level}.downsamplers.0.conv", f"input_blocks.{last}.0.op")
            yield family.KeyRule(f"up_blocks.{level}.upsamplers.0.conv", f"output_blocks.{last - 1}.{number}.conv")
        yield family.KeyRule("mid_block.attentions.0.*", "middle_block.1.*")
        for i, place in ((0, 0), (1, 2)):
            yield from _resnet(f"mid_block.resnets.{i}", f"middle_block.{place}")


class SDXLConfig(UNetConfig):
    """Defaults are those of SDXL base; six sizes enter as sines and cosines of width `addition_time_embed_dim`."""

    sample_size: int = 128
    down_block_types: tuple[str, ...] = ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D")
    up_block_types: tuple[str, ...] = ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")
    block_out_channels: tuple[int, ...] = (320, 640, 1280)
    cross_attention_dim: family.TextWidth = 2048
    transformer_layers_per_block: tuple[int, ...] = (1, 2, 10)
    attention_head_dim: tuple[int, ...] = (5, 10, 20)
    use_linear_projection: bool = True
    addition_embed_type: str = "text_time"
    addition_time_embed_dim: int = 256
    projection_class_embeddings_input_dim: int = 2816

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        width = family.require_pooled(components) + 6 * self.addition_time_embed_dim
        return super().fit(components).model_copy(update={"projection_class_embeddings_input_dim": width})


def _block(own: str, layer: int, release: str) -> Iterator[family.KeyRule]:
    yield from _resnet(f"{own}.resnets.{layer}", f"{release}.0")
    yield family.KeyRule(f"{own}.attentions.{layer}.*", f"{release}.1.*")


def _resnet(own: str, release: str) -> Iterator[family.KeyRule]:
    yield family.KeyRule(f"{own}.time_emb_proj", f"{release}.emb_layers.1")
    for layer, there in (("conv1", "in_layers.2"), ("conv2", "out_layers.3"), ("conv_shortcut", "skip_connection")):
        yield family.KeyRule(f"{own}.{layer}", f"{release}.{there}")


FAMILY = family_file.read(__package__, SDXLConfig)
