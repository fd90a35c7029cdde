"""Clips that pipelines of diffusers for Wan's networks make, with the steps of our own sampler."""

from __future__ import annotations

import functools
from typing import Any

import diffusers
import numpy as np
import torch
from numpy.typing import NDArray

from reelworks.core.shape import Shape
from reelworks.training.encoding.encoders import FrozenEncoders

STEPS = 3


def frames(
    pipeline: Any,
    parts: tuple[Any, FrozenEncoders, Any],
    shape: Shape,
    shift: float,
    *given: Any,
    options: dict[str, Any] | None = None,
    **named: Any,
) -> NDArray[np.uint8]:
    """Return `[T, H, W, 3]` of a class of pipelines, its own `options` and what is given to a call.

    `parts` are denoiser, encoder and the autoencoder of diffusers.
    """
    denoiser, encoder, vae = parts
    scheduler: Any = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    sigmas = np.linspace(1.0, 1 / STEPS, STEPS)
    scheduler.set_timesteps = functools.partial(scheduler.set_timesteps, sigmas=sigmas)
    pipe = pipeline(None, None, vae, scheduler, denoiser.module.eval(), **(options or {}))
    pipe.set_progress_bar_config(disable=True)
    text = encoder.texts(["waves", ""], [False, False])
    embeds = text.tokens * text.mask[..., None]
    made = pipe(
        *given,
        **named,
        height=shape.height,
        width=shape.width,
        num_frames=shape.num_frames,
        num_inference_steps=STEPS,
        guidance_scale=3.0,
        generator=torch.Generator().manual_seed(5),
        prompt_embeds=embeds[:1],
        negative_prompt_embeds=embeds[1:],
        output_type="np",
        return_dict=False,
    )[0]
    whole: NDArray[np.uint8] = (made[0] * 255).round().astype(np.uint8)
    return whole
