"""Sizes, components and published releases of FLUX.2 networks; torch-free."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from reelworks.core.config import Config
from reelworks.models import family

_MODULATIONS = ("double_stream_modulation_img", "double_stream_modulation_txt", "single_stream_modulation")
_RELEASE_LAYERS = (
    *family.release_blocks("transformer_blocks", "double_blocks", family.TWO_STREAMS),
    *family.release_blocks(
        "single_transformer_blocks", "single_blocks", {"attn.to_qkv_mlp_proj": "linear1", "attn.to_out": "linear2"}
    ),
    *(family.KeyRule(f"{name}.linear", f"{name}.lin") for name in _MODULATIONS),
    *family.release_inputs("time_guidance_embed"),
    *family.FINAL_LAYERS,
)


class Flux2Config(Config):
    """Arguments of diffusers' Flux2Transformer2DModel; defaults are those of FLUX.2-dev."""

    patch_size: ClassVar[tuple[int, int, int]] = (1, 1, 1)
    pictures_only: ClassVar[bool] = True
    network: ClassVar[family.Network] = family.Network(
        "Flux2Transformer2DModel",
        ("transformer_blocks", "single_transformer_blocks"),
        release_layers=_RELEASE_LAYERS,
        comfyui_maps_parts=True,
        sequence=family.SequenceSplit(captions=True),
    )

    in_channels: int = 128
    num_layers: int = 8
    num_single_layers: int = 48
    attention_head_dim: int = 128
    num_attention_heads: int = 48
    joint_attention_dim: int = 15360
    guidance_embeds: bool = True
    axes_dims_rope: tuple[int, int, int, int] = (32, 32, 32, 32)

    @property
    def conditioning(self) -> family.Conditioning:
        """Conditioning of the network; a distilled one takes the guidance scale."""
        return family.Conditioning(
            guidance="embedded" if self.guidance_embeds else "classifier-free",
            takes=("source",),
            most_sources=4,
        )

    def fit(self, components: family.ComponentShapes) -> Self:
        """Return a copy with the widths of the components."""
        return self.model_copy(
            update={"in_channels": components.latent_channels, "joint_attention_dim": components.text_dim}
        )


_KLEIN_4B = Flux2Config(
    num_layers=5, num_single_layers=20, num_attention_heads=24, joint_attention_dim=7680, guidance_embeds=False
)
_KLEIN_9B = Flux2Config(
    num_layers=8, num_single_layers=24, num_attention_heads=32, joint_attention_dim=12288, guidance_embeds=False
)
_TINY = Flux2Config(
    num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, axes_dims_rope=(4, 4, 4, 4)
)
_preset = partial(family.Preset, parts=family.Parts("flux2", "flux2"), sampling=family.SamplingDefaults(4.0, 50))
_MISTRAL = family.TextNetwork("text_encoder", "mistral", 131_072)
_QWEN3 = family.TextNetwork("text_encoder", "qwen3", 151_936)


def _klein(size: str) -> dict[str, family.Preset]:
    """Return the distilled and the base model of a size, which share all parts but the denoiser's weights."""
    config = {"4b": _KLEIN_4B, "9b": _KLEIN_9B}[size]
    preset = partial(_preset, config, parts=family.Parts("flux2", f"flux2-klein-{size}"))
    note = family.FLUX_NON_COMMERCIAL if size == "9b" else None
    release = partial(family.Release, architecture=f"Flux.2-klein-{size}", licence_note=note)
    weights = "black-forest-labs/FLUX.2-klein"
    return {
        f"flux2-klein-base-{size}": preset(release=release(f"{weights}-base-{size.upper()}")),
        # Sampling defaults of its release.
        f"flux2-klein-{size}": preset(
            sampling=family.SamplingDefaults(1.0, 4), release=release(f"{weights}-{size.upper()}", distilled=True)
        ),
    }


FAMILY = family.Family(
    name="flux2",
    network=f"{__package__}.network",
    presets={
        "flux2-dev": _preset(
            Flux2Config(),
            release=family.Release(
                "black-forest-labs/FLUX.2-dev", architecture="Flux.2-dev", licence_note=family.FLUX_NON_COMMERCIAL
            ),
        ),
        **_klein("4b"),
        **_klein("9b"),
        "flux2-tiny": _preset(_TINY),
        "flux2-klein-tiny": _preset(
            _TINY.model_copy(update={"guidance_embeds": False}), parts=family.Parts("flux2", "flux2-klein-4b")
        ),
    },
    autoencoders={
        "flux2": family.PublishedAutoencoder(
            "AutoencoderKLFlux2",
            128,
            (1, 16, 16),
            parameters=84_046_115,
            signs=("bn.running_mean",),
            has_time_axis=False,
            packs_squares=True,
        )
    },
    text_encoders={
        "flux2": family.PublishedText("Flux2Pipeline", 15360, 512, parameters=24_011_361_280, networks=(_MISTRAL,)),
        "flux2-klein-4b": family.PublishedText(
            "Flux2KleinPipeline", 7680, 512, parameters=4_022_468_096, networks=(_QWEN3,)
        ),
        "flux2-klein-9b": family.PublishedText(
            "Flux2KleinPipeline", 12288, 512, parameters=8_190_735_360, networks=(_QWEN3,)
        ),
    },
    # A name without a size or a kind means the smallest of those that were published for training.
    short_names={
        "flux2": "flux2-dev",
        "flux2-klein": "flux2-klein-base-4b",
        "flux2-klein-base": "flux2-klein-base-4b",
        "klein": "flux2-klein-base-4b",
        "klein-4b": "flux2-klein-4b",
        "klein-9b": "flux2-klein-9b",
        "klein-base-4b": "flux2-klein-base-4b",
        "klein-base-9b": "flux2-klein-base-9b",
    },
)
