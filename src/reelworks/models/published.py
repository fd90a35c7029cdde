"""Autoencoders and text encoders that diffusers' families were published with; torch-free.

A folder in the layout of diffusers holds all parts of a family side by side, and can be named as the
weights of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class PublishedAutoencoder:
    """An autoencoder of diffusers.

    Attributes:
        network: Its class.
        channels: Of the latents that a denoiser sees.
        stride: Pixels per latent element along (time, height, width).
        frame_rule: See `core.shape.Geometry`.
        parameters: How many it has.
        config: Keys of its config that tell its latents from those of others of the class, and what they say.
    """

    network: str
    channels: int
    stride: tuple[int, int, int]
    frame_rule: tuple[int, int] = (0, 1)
    parameters: int = 0
    config: Mapping[str, object] = field(default_factory=dict)


class TextNetwork(NamedTuple):
    """A network that reads captions.

    Attributes:
        part: Its folder beside the other parts; empty where it stands alone.
        kind: As its config says it (`model_type`), of the half that reads texts.
        vocabulary: Tokens that it knows.
    """

    part: str
    kind: str
    vocabulary: int


@dataclass(frozen=True)
class PublishedText:
    """Text encoders of a family, which its pipeline in diffusers puts together.

    Attributes:
        pipeline: Its class.
        dim: Width of a token.
        max_length: Tokens kept of a caption.
        pooled_dim: Width of a caption's summary, 0 where there is none.
        parameters: How many its networks have.
        networks: Those that a recipe's weights must hold.
    """

    pipeline: str
    dim: int
    max_length: int
    pooled_dim: int = 0
    parameters: int = 0
    networks: tuple[TextNetwork, ...] = ()


class PublishedImage(NamedTuple):
    """An image encoder, of float32.

    Attributes:
        tokens: That it makes of a picture.
        parameters: How many it has.
    """

    tokens: int
    parameters: int


class Parts(NamedTuple):
    """Names of the parts beside a denoiser."""

    autoencoder: str
    text: str


AUTOENCODERS: dict[str, PublishedAutoencoder] = {
    "wan-2.1": PublishedAutoencoder(
        "AutoencoderKLWan", 16, (4, 8, 8), (4, 1), parameters=126_892_531, config={"z_dim": 16}
    ),
    "wan-2.2": PublishedAutoencoder(
        "AutoencoderKLWan", 48, (4, 16, 16), (4, 1), parameters=704_688_668, config={"z_dim": 48}
    ),
    "flux": PublishedAutoencoder(
        "AutoencoderKL",
        16,
        (1, 8, 8),
        parameters=83_819_683,
        config={"latent_channels": 16, "scaling_factor": 0.3611, "shift_factor": 0.1159},
    ),
    "flux2": PublishedAutoencoder("AutoencoderKLFlux2", 128, (1, 16, 16), parameters=84_046_115),
    "qwen-image": PublishedAutoencoder(
        "AutoencoderKLQwenImage", 16, (1, 8, 8), parameters=126_892_531, config={"z_dim": 16}
    ),
    "ltx-video": PublishedAutoencoder(
        "AutoencoderKLLTXVideo", 128, (8, 32, 32), (8, 1), parameters=419_193_649
    ),
    "ltx-2": PublishedAutoencoder(
        "AutoencoderKLLTX2Video",
        128,
        (8, 32, 32),
        (8, 1),
        parameters=1_222_479_601,
        config={"decoder_spatio_temporal_scaling": (True,) * 3},
    ),
    "ltx-2.3": PublishedAutoencoder(
        "AutoencoderKLLTX2Video",
        128,
        (8, 32, 32),
        (8, 1),
        parameters=726_105_969,
        config={"decoder_spatio_temporal_scaling": (True,) * 4},
    ),
    "hunyuan-video-1.5": PublishedAutoencoder(
        "AutoencoderKLHunyuanVideo15",
        32,
        (4, 16, 16),
        (4, 1),
        parameters=1_260_634_115,
        config={"latent_channels": 32, "scaling_factor": 1.03682},
    ),
    "sdxl": PublishedAutoencoder(
        "AutoencoderKL",
        4,
        (1, 8, 8),
        parameters=83_653_863,
        config={"latent_channels": 4, "scaling_factor": 0.13025, "shift_factor": None},
    ),
    "sd3": PublishedAutoencoder(
        "AutoencoderKL",
        16,
        (1, 8, 8),
        parameters=83_819_683,
        config={"latent_channels": 16, "scaling_factor": 1.5305, "shift_factor": 0.0609},
    ),
}

T5 = TextNetwork("", "t5", 32_128)
_CLIP = TextNetwork("text_encoder", "clip_text_model", 49_408)
_GEMMA = TextNetwork("text_encoder", "gemma3_text", 262_208)
_QWEN_VL = TextNetwork("text_encoder", "qwen2_5_vl_text", 152_064)

TEXT_ENCODERS: dict[str, PublishedText] = {
    "wan": PublishedText(
        "WanPipeline",
        4096,
        512,
        parameters=5_680_910_336,
        networks=(TextNetwork("text_encoder", "umt5", 256_384),),
    ),
    "flux": PublishedText(
        "FluxPipeline",
        4096,
        512,
        768,
        parameters=4_885_371_136,
        networks=(_CLIP, T5._replace(part="text_encoder_2")),
    ),
    "flux2": PublishedText(
        "Flux2Pipeline",
        15360,
        512,
        parameters=24_011_361_280,
        networks=(TextNetwork("text_encoder", "mistral", 131_072),),
    ),
    "qwen-image": PublishedText(
        "QwenImagePipeline", 3584, 512, parameters=8_292_166_656, networks=(_QWEN_VL,)
    ),
    # Some 1370 of these are of the picture that it sees.
    "qwen-image-edit": PublishedText(
        "QwenImageEditPipeline", 3584, 2048, parameters=8_292_166_656, networks=(_QWEN_VL,)
    ),
    "z-image": PublishedText(
        "ZImagePipeline",
        2560,
        512,
        parameters=4_022_468_096,
        networks=(TextNetwork("text_encoder", "qwen3", 151_936),),
    ),
    "ltx-video": PublishedText(
        "LTXPipeline",
        4096,
        128,
        parameters=4_762_310_656,
        networks=(T5._replace(part="text_encoder"),),
    ),
    "ltx-2": PublishedText("LTX2Pipeline", 3840, 1024, parameters=13_618_800_240, networks=(_GEMMA,)),
    "ltx-2.3": PublishedText("LTX2Pipeline", 4096, 1024, parameters=15_359_552_624, networks=(_GEMMA,)),
    "hunyuan-video-1.5": PublishedText(
        "HunyuanVideo15Pipeline", 3584, 1000, parameters=7_288_276_608, networks=(_QWEN_VL,)
    ),
    "sdxl": PublishedText(
        "StableDiffusionXLPipeline",
        2048,
        77,
        1280,
        parameters=817_720_320,
        networks=(_CLIP, _CLIP._replace(part="text_encoder_2")),
    ),
    "sd3": PublishedText(
        "StableDiffusion3Pipeline",
        4096,
        333,
        2048,
        parameters=5_580_620_800,
        networks=(_CLIP, _CLIP._replace(part="text_encoder_2"), T5._replace(part="text_encoder_3")),
    ),
}

# By the names in `Conditioning.image_encoder`: a ViT-H/14 of 224 pixels, and a SO400M/14 of 384.
IMAGE_ENCODERS = {"clip": PublishedImage(257, 630_766_080), "siglip": PublishedImage(729, 428_225_600)}

# By the beginnings of presets' names.
_PARTS: dict[str, Parts] = {
    "flux-": Parts("flux", "flux"),
    "flux2-": Parts("flux2", "flux2"),
    "hunyuan-video-1.5": Parts("hunyuan-video-1.5", "hunyuan-video-1.5"),
    "ltx-": Parts("ltx-video", "ltx-video"),
    "ltx-2": Parts("ltx-2", "ltx-2"),
    "ltx-2.3": Parts("ltx-2.3", "ltx-2.3"),
    "qwen-image": Parts("qwen-image", "qwen-image"),
    "qwen-image-edit": Parts("qwen-image", "qwen-image-edit"),
    "sd3": Parts("sd3", "sd3"),
    "sdxl": Parts("sdxl", "sdxl"),
    "stdit2": Parts("opensora-1.1", "t5"),
    "stdit3": Parts("opensora-1.2", "t5"),
    "wan-": Parts("wan-2.1", "wan"),
    "wan-2.2-5b": Parts("wan-2.2", "wan"),
    "z-image": Parts("flux", "z-image"),
}

# Autoencoders beside those above whose latents a denoiser knows, by the beginnings of presets' names: Qwen-Image's was
# made of Wan 2.1's, whose encoder it has; PixArt, which STDiT3 may start from, was trained on those of SDXL.
_ALSO_KNOWN = {"wan-": "qwen-image", "qwen-image": "wan-2.1", "stdit3": "sdxl"}


def parts(preset: str) -> Parts:
    """Return the parts that a preset of `model.name` was published with."""
    return of_family(_PARTS, preset)


def of_family(table: Mapping[str, _Value], preset: str) -> _Value:
    """Look a preset up by the longest beginning of its name."""
    return table[max((start for start in table if preset.startswith(start)), key=len)]


def autoencoders(preset: str) -> tuple[str, ...]:
    """Autoencoders whose latents the published weights of a preset know, first the one that they came with."""
    also = (name for start, name in _ALSO_KNOWN.items() if preset.startswith(start))
    return (parts(preset).autoencoder, *also)
