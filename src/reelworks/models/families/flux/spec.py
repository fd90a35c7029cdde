"""Sizes, components and published releases of FLUX.1 networks; torch-free."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, Self

from pydantic import Field

from reelworks.core.config import Config
from reelworks.models import family

_RELEASE_LAYERS = (
    *family.release_blocks("transformer_blocks", "double_blocks", family.TWO_STREAMS),
    family.KeyRule(
        " ".join(f"single_transformer_blocks.N.{part}" for part in (*family.QKV.split(), "proj_mlp")),
        "single_blocks.N.linear1",
        heights=(1, 1, 1, 4),
    ),
    *family.release_blocks(
        "single_transformer_blocks", "single_blocks", {"norm.linear": "modulation.lin", "proj_out": "linear2"}
    ),
    *family.release_inputs("time_text_embed"),
    *family.FINAL_LAYERS,
)


class FluxConfig(Config):
    """Arguments of diffusers' FluxTransformer2DModel; defaults are those of FLUX.1-dev.

    `companion`: "control" adds channels to the noise, as in FLUX.1-Canny and -Depth; "source" adds tokens after
    it, as in FLUX.1-Kontext.
    """

    patch_size: ClassVar[tuple[int, int, int]] = (1, 2, 2)
    pictures_only: ClassVar[bool] = True
    network: ClassVar[family.Network] = family.Network(
        "FluxTransformer2DModel",
        ("transformer_blocks", "single_transformer_blocks"),
        widened="x_embedder.weight",
        release_layers=_RELEASE_LAYERS,
        comfyui_maps_parts=True,
        sequence=family.SequenceSplit(captions=True),
    )

    in_channels: int = 64
    out_channels: int = 64
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    pooled_projection_dim: int = 768
    guidance_embeds: bool = True
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)
    companion: Literal["control", "source"] | None = Field(default=None, exclude=True)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; a distilled one takes the guidance scale."""
        return family.Conditioning(
            guidance="embedded" if self.guidance_embeds else "classifier-free",
            takes=() if self.companion is None else (self.companion,),
            needs=("control",) if self.companion == "control" else (),
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        channels = 4 * components.latent_channels
        return self.model_copy(
            update={
                "in_channels": 2 * channels if self.companion == "control" else channels,
                "out_channels": channels,
                "joint_attention_dim": components.text_dim,
                "pooled_projection_dim": family.require_pooled(components),
            }
        )


_TINY = FluxConfig(
    num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, axes_dims_rope=(4, 6, 6)
)
_preset = partial(family.Preset, parts=family.Parts("flux", "flux"), sampling=family.SamplingDefaults(3.5, 28))
_DEV = family.Release(
    "black-forest-labs/FLUX.1-dev",
    architecture="flux-1-dev",
    base_version="flux1",
    licence_note=family.FLUX_NON_COMMERCIAL,
)
_KONTEXT = replace(_DEV, weights="black-forest-labs/FLUX.1-Kontext-dev")
# There are two, FLUX.1-Canny-dev and FLUX.1-Depth-dev; both have the autoencoder and the text encoders of FLUX.1-dev.
_CONTROL = replace(_DEV, weights=None, autoencoder=_DEV.weights, text=_DEV.weights)
_SCHNELL = family.Release(
    "black-forest-labs/FLUX.1-schnell",
    timestep_shift=1.0,
    architecture="flux-1-schnell",
    base_version="flux1",
    distilled=True,
)
_ENCODERS = (family.CLIP, family.T5._replace(part="text_encoder_2"))
FAMILY = family.Family(
    name="flux",
    network=f"{__package__}.network",
    presets={
        "flux-dev": _preset(FluxConfig(), release=_DEV),
        # Sampling defaults of its release.
        "flux-schnell": _preset(
            FluxConfig(guidance_embeds=False), sampling=family.SamplingDefaults(1.0, 4), release=_SCHNELL
        ),
        "flux-control": _preset(FluxConfig(in_channels=128, companion="control"), release=_CONTROL),
        "flux-kontext": _preset(FluxConfig(companion="source"), release=_KONTEXT),
        "flux-tiny": _preset(_TINY),
        "flux-control-tiny": _preset(_TINY.model_copy(update={"in_channels": 128, "companion": "control"})),
        "flux-kontext-tiny": _preset(_TINY.model_copy(update={"companion": "source"})),
    },
    autoencoders={"flux": family.picture_autoencoder(16, 0.3611, 0.1159, parameters=83_819_683)},
    text_encoders={
        "flux": family.PublishedText(
            "FluxPipeline", 4096, 512, 768, parameters=4_885_371_136, networks=_ENCODERS, tokenizer="tokenizer_2"
        )
    },
    short_names={"flux": "flux-dev"},
    tuned={"fluxkrea": "flux-dev"},
)
