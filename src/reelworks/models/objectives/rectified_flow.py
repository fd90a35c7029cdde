"""Rectified flow (Liu et al. 2022) with the conventions of Open-Sora 1.2.

Noise and data are joined by straight lines, x_t = (1 − t/1000)·x0 + (t/1000)·noise, and the model
predicts the velocity towards the data, x0 − noise.

Legend: B clips, C channels, T latent frames, H height, W width. Frame masks are True where a frame is
generated and False where it is a condition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from reelworks.models.objectives.config import NUM_TIMESTEPS

_SMALLEST_SHARE = 0.05


def per_frame(value_BT: Tensor) -> Tensor:
    """View `[B, T]` so that it broadcasts over `[B, C, T, H, W]`."""
    return value_BT[:, None, :, None, None]


def noised(x0_BCTHW: Tensor, noise_BCTHW: Tensor, t_B: Tensor, frame_mask_BT: Tensor | None) -> Tensor:
    """Blend latents with noise at timesteps in [0, 1000]; conditioning frames, if there is a mask, stay clean.

    The result has the common dtype of latents and timesteps: float32 for bfloat16 latents, so that they are cast only
    once, at the model's input.
    """
    share = (t_B / NUM_TIMESTEPS)[:, None, None, None, None]
    x_t = (1 - share) * x0_BCTHW + share * noise_BCTHW
    return x_t if frame_mask_BT is None else torch.where(per_frame(frame_mask_BT), x_t, x0_BCTHW)


def velocity_from(
    output_BCTHW: Tensor, x_t_BCTHW: Tensor, t_B: Tensor, prediction: Literal["velocity", "sample"]
) -> Tensor:
    """Return the velocity that a network's output implies; a second half of channels (variance) is ignored.

    From a predicted sample it is v = (x0 − x_t) / (t/1000), the same straight line. Values of t/1000 below 0.05
    count as 0.05, as in Li and He 2025 (arXiv:2511.13720), since errors of the sample grow as 1/t.
    """
    output_BCTHW = output_BCTHW[:, : x_t_BCTHW.shape[1]]
    if prediction == "velocity":
        return output_BCTHW
    share = (t_B / NUM_TIMESTEPS).clamp(min=_SMALLEST_SHARE)[:, None, None, None, None]
    return (output_BCTHW - x_t_BCTHW) / share


def mean_distance(
    error_BCTHW: Tensor,
    frame_mask_BT: Tensor | None,
    weight_BTHW: Tensor | None = None,
    distance: Callable[[Tensor], Tensor] = torch.square,
) -> Tensor:
    """Return the mean over each clip's counted elements of a function of the error, by default its square, `[B]`.

    Elements of generated frames are counted, by their weights if there are any. A clip without counted elements
    has loss 0 and no gradient. Non-finite values of other elements affect neither: they are replaced, not
    multiplied by 0.
    """
    counted_BCTHW = generated_only(error_BCTHW, frame_mask_BT, weight_BTHW)
    return mean_over_generated(distance(counted_BCTHW), frame_mask_BT, weight_BTHW)


def generated_only(value_BCTHW: Tensor, frame_mask_BT: Tensor | None, weight_BTHW: Tensor | None = None) -> Tensor:
    """Replace elements that are not counted by 0, so that non-finite ones cannot reach a gradient."""
    zero = value_BCTHW.new_zeros(())
    if weight_BTHW is not None:
        value_BCTHW = torch.where(weight_BTHW[:, None] > 0, value_BCTHW, zero)
    return value_BCTHW if frame_mask_BT is None else torch.where(per_frame(frame_mask_BT), value_BCTHW, zero)


def mean_over_generated(value_BCTHW: Tensor, frame_mask_BT: Tensor | None, weight_BTHW: Tensor | None = None) -> Tensor:
    """Return the mean over each clip's counted elements, `[B]`; 0 if there are none."""
    if weight_BTHW is not None:
        counted_BTHW = generated_only(value_BCTHW, frame_mask_BT, weight_BTHW).mean(dim=1)
        total_B = generated_only(weight_BTHW[:, None], frame_mask_BT).sum(dim=(1, 2, 3, 4))
        smallest = torch.finfo(total_B.dtype).tiny
        return (counted_BTHW * weight_BTHW).sum(dim=(1, 2, 3)) / total_B.clamp(min=smallest)
    if frame_mask_BT is None:
        return value_BCTHW.mean(dim=(1, 2, 3, 4))
    counted_BCTHW = generated_only(value_BCTHW, frame_mask_BT)
    return counted_BCTHW.mean(dim=(1, 3, 4)).sum(dim=1) / frame_mask_BT.sum(dim=1).clamp(min=1)
