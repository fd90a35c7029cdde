"""Facts about published models beside their sizes: where they lie, and how they are usually trained; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reelworks.core.errors import UserError, nearest
from reelworks.models.config import PRESETS


@dataclass(frozen=True)
class WellKnown:
    """A preset as it was published.

    Attributes:
        weights: Hub id of the denoiser; None where none is known.
        autoencoder: Hub id of the autoencoder, where it is another one.
        text: Hub id of the text encoders, where it is another one.
        side: Pictures of side × side pixels that it was released for.
        lines: Lines of clips at 16:9, 0 where it makes pictures alone.
        num_frames: Frames of the clips that it was released for.
        objective: What it was trained with.
        timestep_shift: Of rectified flow.
        formats: Conventions of LoRA files that programs for this model read.
    """

    weights: str | None
    autoencoder: str | None = None
    text: str | None = None
    side: int = 1024
    lines: int = 0
    num_frames: int = 1
    objective: str = "rectified-flow"
    timestep_shift: float | str = 3.0
    formats: tuple[str, ...] = ("diffusers", "comfyui")


_WAN = WellKnown("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", side=640, lines=480, num_frames=81)
# Its scheduler shifts by e^0.95 at 1,024 tokens and by e^2.05 at 4,096; this lies between.
_LTX2 = replace(_WAN, weights="Lightricks/LTX-2", num_frames=121, timestep_shift=5.0)
_STDIT = WellKnown(None, side=512, lines=240, num_frames=51, timestep_shift="auto")
_STDIT3 = replace(_STDIT, autoencoder="hpcai-tech/OpenSora-VAE-v1.2", text="DeepFloyd/t5-v1_1-xxl")
_TINY = WellKnown(None, side=64, lines=64, num_frames=17)

_KNOWN: dict[str, WellKnown] = {
    "flux-dev": WellKnown("black-forest-labs/FLUX.1-dev"),
    "flux-schnell": WellKnown("black-forest-labs/FLUX.1-schnell", timestep_shift=1.0),
    "flux2-dev": WellKnown("black-forest-labs/FLUX.2-dev"),
    "hunyuan-video-1.5": replace(_WAN, weights="hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v"),
    "hunyuan-video-1.5-i2v": replace(
        _WAN, weights="hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_i2v"
    ),
    "ltx-video-2b": replace(_WAN, weights="Lightricks/LTX-Video", num_frames=97),
    "ltx-video-13b": replace(_WAN, weights="Lightricks/LTX-Video-0.9.7-dev", num_frames=97),
    "ltx-2": _LTX2,
    "ltx-2.3": replace(_LTX2, weights="diffusers/LTX-2.3-Diffusers"),
    "qwen-image": WellKnown("Qwen/Qwen-Image", timestep_shift=2.2),
    "sd3-medium": WellKnown("stabilityai/stable-diffusion-3-medium-diffusers"),
    "sd3.5-medium": WellKnown("stabilityai/stable-diffusion-3.5-medium"),
    "sd3.5-large": WellKnown("stabilityai/stable-diffusion-3.5-large"),
    "sdxl": WellKnown(
        "stabilityai/stable-diffusion-xl-base-1.0", objective="epsilon", formats=("diffusers", "kohya")
    ),
    "stdit2-xl": replace(
        _STDIT,
        weights="hpcai-tech/OpenSora-STDiT-v2-stage3",
        autoencoder="stabilityai/sd-vae-ft-ema",
        text="DeepFloyd/t5-v1_1-xxl",
        objective="iddpm",
    ),
    "stdit3-xl": replace(_STDIT3, weights="hpcai-tech/OpenSora-STDiT-v3"),
    "stdit3-3b": _STDIT3,
    "wan-2.1-1.3b": _WAN,
    "wan-2.1-14b": replace(_WAN, weights="Wan-AI/Wan2.1-T2V-14B-Diffusers"),
    "wan-2.2-14b": replace(_WAN, weights="Wan-AI/Wan2.2-T2V-A14B-Diffusers"),
    "wan-2.1-i2v-14b": replace(_WAN, weights="Wan-AI/Wan2.1-I2V-14B-480P-Diffusers"),
    "wan-2.2-i2v-14b": replace(_WAN, weights="Wan-AI/Wan2.2-I2V-A14B-Diffusers"),
    "wan-2.2-5b": replace(_WAN, weights="Wan-AI/Wan2.2-TI2V-5B-Diffusers"),
    "z-image": WellKnown("Tongyi-MAI/Z-Image"),
}
SHORT_NAMES = {
    "flux": "flux-dev",
    "flux2": "flux2-dev",
    "hunyuan": "hunyuan-video-1.5",
    "hunyuan-video": "hunyuan-video-1.5",
    "ltx": "ltx-video-2b",
    "open-sora": "stdit3-xl",
    "qwen": "qwen-image",
    "sd3": "sd3.5-medium",
    "stdit2": "stdit2-xl",
    "stdit3": "stdit3-xl",
    "wan": "wan-2.1-1.3b",
    "wan-2.1": "wan-2.1-1.3b",
    "wan-2.2": "wan-2.2-5b",
}


def preset(name: str) -> str:
    """Find the preset that a name means: its own, or a family's short one.

    Raises:
        UserError: Names the nearest.
    """
    found = SHORT_NAMES.get(name, name)
    if found not in PRESETS:
        raise UserError(
            "there is no such model",
            field="--model",
            value=name,
            remedy=nearest(name, {*PRESETS, *SHORT_NAMES}),
        )
    return found


def known(preset: str) -> WellKnown:
    """Return the facts of a preset; of the tiny ones, which nobody published, what suits them."""
    return _KNOWN.get(preset, _TINY)


def published(preset: str) -> bool:
    """False for presets that are only there to try things with."""
    return preset in _KNOWN
