"""Sizes, components and published releases of Chroma1 networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models import family

# It computes the modulations of all blocks. The release was trained with it as it is, without gradients.
_APPROXIMATOR = "distilled_guidance_layer"
_RELEASE_LAYERS = (
    *family.release_blocks("transformer_blocks", "double_blocks", family.TWO_STREAMS),
    family.KeyRule(
        " ".join(f"single_transformer_blocks.N.{part}" for part in (*family.QKV.split(), "proj_mlp")),
        "single_blocks.N.linear1",
        heights=(1, 1, 1, 4),
    ),
    *family.release_blocks("single_transformer_blocks", "single_blocks", {"proj_out": "linear2"}),
    *family.release_blocks(
        f"{_APPROXIMATOR}.layers", f"{_APPROXIMATOR}.layers", {"linear_1": "in_layer", "linear_2": "out_layer"}
    ),
    family.KeyRule("context_embedder", "txt_in"),
    family.KeyRule("x_embedder", "img_in"),
    family.KeyRule("proj_out", "final_layer.linear"),
)


class ChromaConfig(Config):
    """Arguments of diffusers' ChromaTransformer2DModel; defaults are the published ones."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    conditioning: ClassVar[family.Conditioning] = family.Conditioning()
    network: ClassVar[family.Network] = family.Network(
        "ChromaTransformer2DModel",
        ("transformer_blocks", "single_transformer_blocks"),
        without_gradient=(f"{_APPROXIMATOR}.",),
        release_layers=_RELEASE_LAYERS,
    )

    in_channels: int = 64
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)
    approximator_hidden_dim: int = 5120
    approximator_layers: int = 5

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        return self.model_copy(
            update={"in_channels": 4 * components.latent_channels, "joint_attention_dim": components.text_dim}
        )


_TINY = ChromaConfig(
    num_layers=1,
    num_single_layers=1,
    attention_head_dim=16,
    num_attention_heads=2,
    axes_dims_rope=(4, 6, 6),
    approximator_hidden_dim=32,
    approximator_layers=1,
)
_preset = partial(family.Preset, parts=family.Parts("flux", "chroma"), sampling=family.SamplingDefaults(5.0, 35))
# Its times were not shifted.
_release = partial(family.Release, timestep_shift=1.0, architecture="chroma")
_T5 = family.T5._replace(part="text_encoder")
FAMILY = family.Family(
    name="chroma",
    network=f"{__package__}.network",
    presets={
        "chroma1-hd": _preset(ChromaConfig(), release=_release("lodestones/Chroma1-HD")),
        "chroma1-base": _preset(ChromaConfig(), release=_release("lodestones/Chroma1-Base", side=512)),
        "chroma-tiny": _preset(_TINY),
    },
    text_encoders={
        "chroma": family.PublishedText("ChromaPipeline", 4096, 512, parameters=4_762_310_656, networks=(_T5,))
    },
    short_names={"chroma": "chroma1-hd", "chroma1": "chroma1-hd"},
)
