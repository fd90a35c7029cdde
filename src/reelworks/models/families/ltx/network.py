"""Call an LTX-Video network and its pipeline."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, grid, masked_arguments, with_sources
from reelworks.models.families.ltx.spec import LTXConfig

_STRIDE = (8, 32, 32)  # pixels per latent element of its autoencoder


def predict(module: Any, inputs: DenoiserInputs, config: LTXConfig) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`; the network's points towards the noise.

    Condition frames have time 0. So have sources, whose tokens follow those of the clip at the same positions.
    """
    tokens, times = with_sources(inputs)
    out: Tensor = module(
        tokens,
        inputs.text,
        times,
        inputs.text_mask,
        video_coords=_positions(inputs, config.causal_times),
        return_dict=False,
    )[0]
    return -out[:, : inputs.latent[0, 0].numel()].transpose(1, 2).reshape(inputs.latent.shape)


def _positions(inputs: DenoiserInputs, causal: bool) -> Tensor:
    """Return the position of every token in seconds and pixels, `[B, 3, N]`; sources cover the area of the clip.

    A latent frame lies at its first frame, which is that at a multiple of 8 or, if times are `causal`, the one behind it.
    """
    H, W = inputs.latent.shape[3:]
    places = []
    for latent in (inputs.latent, *inputs.sources):
        frame, row, column = grid(*latent.shape[2:], device=latent.device).T
        if causal:
            frame = (frame - 1 + 1 / _STRIDE[0]).clamp(min=0)
        places.append(torch.stack([frame, row * (H / latent.shape[3]), column * (W / latent.shape[4])]))
    # Numbers are filled in by kernels: the copy of a list would wait for the device.
    scale_B3 = torch.stack([torch.full_like(inputs.fps, float(stride)) for stride in _STRIDE], dim=1)
    scale_B3[:, 0] /= inputs.fps
    return torch.cat(places, dim=1) * scale_B3[..., None]


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions."""
    tokens, mask, *_ = pipeline.encode_prompt(captions, None, False, max_sequence_length=length)
    return EncodedText(tokens, mask)


def _no_pipeline(_module: Any, config: LTXConfig) -> str | None:
    return "the family's pipeline has the times of frames of older releases" if config.causal_times else None


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"ltx-video": encode_text},
    pipeline_arguments=masked_arguments,
    word_arguments=lambda config, _length: None if config.causal_times else {},
    no_pipeline=_no_pipeline,
)
