"""How models are usually sampled, where nobody says it; torch-free."""

from __future__ import annotations

from typing import NamedTuple

from reelworks.models import published


class SamplingDefaults(NamedTuple):
    """Defaults of a model's own pipeline.

    Attributes:
        guidance_scale: Strength of the prompt; 1 is no guidance.
        num_inference_steps: Of the sampler.
    """

    guidance_scale: float
    num_inference_steps: int


# By the beginnings of presets' names: the defaults of diffusers' pipelines. Those of FLUX.1-schnell and HunyuanVideo-1.5
# stand in their releases instead, and those of STDiT in Open-Sora's configs.
_USUAL = {
    "flux-": SamplingDefaults(3.5, 28),
    "flux-schnell": SamplingDefaults(1.0, 4),
    "flux2-": SamplingDefaults(4.0, 50),
    "hunyuan-video-1.5": SamplingDefaults(6.0, 50),
    "ltx-": SamplingDefaults(3.0, 50),
    "ltx-2": SamplingDefaults(3.0, 30),
    "qwen-image": SamplingDefaults(4.0, 50),
    "sd3": SamplingDefaults(7.0, 28),
    "sdxl": SamplingDefaults(5.0, 50),
    "stdit2": SamplingDefaults(7.0, 100),
    "stdit3": SamplingDefaults(7.0, 30),
    "wan-": SamplingDefaults(5.0, 50),
    "z-image": SamplingDefaults(5.0, 50),
}


def usual(preset: str) -> SamplingDefaults:
    """Return the usual sampling settings of a preset of `model.name`."""
    return published.of_family(_USUAL, preset)
