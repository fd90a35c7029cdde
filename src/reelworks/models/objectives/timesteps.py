"""Timesteps of rectified flow: drawn from a density, and shifted for large and long clips.

Timesteps lie in [0, 1000]; 0 is clean and 1000 is noise. Legend: B clips.

Densities are quantile functions of uniform draws, for shares of noise in [0, 1]. `logit-normal` is the sigmoid of a normal
variable; `mode` is u − s · (sin²(π·u/2) − u), which for a scale s above 0 trains the middle more, and for s below 0 both ends;
both are those of Esser et al. 2024 (arXiv:2403.03206), with the draw u turned so that it increases. `beta` is the beta
distribution.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.models.objectives.config import NUM_TIMESTEPS, ObjectiveConfig

_BASE_SIZE_PX = 512  # the shift is 1 for a picture of 512 × 512
_EDGE = 2.0**-53  # hashed draws are multiples of 2^-53; a draw of 0 counts as half of that, and 1 never occurs
_CELLS = 1 << 14
_BISECTIONS = 60


def sample(uniform_B: Tensor, config: ObjectiveConfig) -> Tensor:
    """Map uniform draws to timesteps of the configured density, before the shift.

    The draws are in [0, 1), hashed per clip, so that no generator is needed; the timesteps are float32 in (0, 1000].
    """
    return (_quantile(config, uniform_B.double().clamp(_EDGE / 2, 1 - _EDGE)) * NUM_TIMESTEPS).float()


def share_below(t: float, config: ObjectiveConfig, ratio: float) -> float:
    """Return the share of shifted timesteps below `t`: the draw that `sample` and `shift` map to `t`."""
    if t <= 0 or t >= NUM_TIMESTEPS:
        return float(t >= NUM_TIMESTEPS)
    share = t / NUM_TIMESTEPS
    before = share / (ratio - (ratio - 1) * share)
    # r = 0 (opensora_frame_quantization alone) moves all but pure noise below.
    return before if before >= 1 else _share_below(config, before)


def within(t_B: Tensor, first: float, last: float) -> Tensor:
    """Move timesteps that rounding put outside of `[first, last)` back, since another network may train there."""
    if last < NUM_TIMESTEPS:
        end = t_B.new_tensor(last)
        t_B = torch.minimum(t_B, torch.nextafter(end, torch.zeros_like(end)))
    return t_B.clamp(min=first)


def compat_ratio(height_B: Tensor, width_B: Tensor, num_frames_B: Tensor) -> Tensor:
    """Return the shift ratio of Open-Sora 1.2, in the dtype of the inputs.

    A clip's length counts as `(num_frames // 17) · 5`, its autoencoder's latent frames rounded down, which is 0
    for 2 to 16 frames. A picture counts as 1, and if the first clip is a picture, so do all clips of the batch.
    """
    frames_B = torch.ones_like(num_frames_B) if num_frames_B[0] == 1 else num_frames_B // 17 * 5
    return torch.sqrt(height_B * width_B / _BASE_SIZE_PX**2) * torch.sqrt(frames_B)


def opensora_2_ratio(latent_area: int, latent_frames: int) -> float:
    """Return the shift ratio of Open-Sora 2.0: linear in the tokens of a frame, times the root of the latent frames.

    A token is 2 × 2 elements of the latents; the line goes through a ratio of 1 for 256 tokens and of 3 for 4096.
    """
    slope = (3 - 1) / (4096 - 256)
    return (1 + slope * (latent_area // 4 - 256)) * math.sqrt(latent_frames)


def shift_ratio(
    config: ObjectiveConfig,
    *,
    height: int,
    width: int,
    num_frames: int,
    latent_frames: int,
    latent_area: int | None = None,
) -> float:
    """Return the ratio r by which `shift` moves the timesteps of one shape; 1 leaves them unchanged.

    More pixels and more frames carry more redundant signal, so the same noise hides less of it and training
    needs later timesteps: r = √(height · width / 512²) · √(latent_frames).
    The number of frames before encoding is used by `opensora_frame_quantization` only, and the number of elements of a
    latent frame, by default one for 8 × 8 pixels, by "opensora-2.0" only.
    """
    if config.timestep_shift == "none":
        return 1.0
    if config.timestep_shift == "opensora-2.0":
        return opensora_2_ratio((height // 8) * (width // 8) if latent_area is None else latent_area, latent_frames)
    if config.timestep_shift != "auto":
        return config.timestep_shift
    if config.opensora_frame_quantization:
        sizes = (torch.tensor([size], dtype=torch.float32, device="cpu") for size in (height, width, num_frames))
        return compat_ratio(*sizes).item()
    return math.sqrt(height * width * latent_frames) / _BASE_SIZE_PX


def shift(t_B: Tensor, ratio: float | Tensor) -> Tensor:
    """Move timesteps: t' = r·t / (1 + (r − 1)·t) on t / 1000, increasing in t with 0 and 1000 fixed.

    The ratio r ≥ 0 is a number or a tensor that broadcasts. The result is float32, or float64 if `t_B` is.
    """
    share_B = t_B / NUM_TIMESTEPS
    shifted_B = ratio * share_B / (1 + (ratio - 1) * share_B)
    # r = 0 (opensora_frame_quantization alone) is 0/0 at pure noise.
    return torch.where(share_B == 1, share_B, shifted_B) * NUM_TIMESTEPS


def _quantile(config: ObjectiveConfig, u_B: Tensor) -> Tensor:
    """Map draws in (0, 1), float64, to shares of noise in [0, 1]; increasing in the draw."""
    kind = config.timestep_sampling
    if kind == "logit-normal":
        return torch.sigmoid(config.logit_mean + config.logit_std * torch.special.ndtri(u_B))
    if kind == "mode":
        mode_B = u_B - config.mode_scale * (torch.sin(math.pi / 2 * u_B).square() - u_B)
        return mode_B.clamp(torch.finfo(torch.float32).tiny, 1)
    if kind == "beta":
        angle, below = _beta_table(config.beta_alpha, config.beta_beta)
        return torch.from_numpy(np.sin(np.interp(u_B.cpu().numpy(), below, angle)) ** 2).to(u_B.device)
    return u_B


def _share_below(config: ObjectiveConfig, share: float) -> float:
    """Return the draw that `_quantile` maps to a share of noise in (0, 1)."""
    kind = config.timestep_sampling
    if kind == "logit-normal":
        normal = (math.log(share / (1 - share)) - config.logit_mean) / config.logit_std
        return 0.5 * (1 + math.erf(normal / math.sqrt(2)))
    if kind == "mode":
        return _inverse_of_mode(share, config.mode_scale)
    if kind == "beta":
        angle, below = _beta_table(config.beta_alpha, config.beta_beta)
        return float(np.interp(math.asin(math.sqrt(share)), angle, below))
    return share


def _inverse_of_mode(share: float, scale: float) -> float:
    """Bisect, as the function has no inverse in closed form; it increases for the scales that a recipe may have."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle - scale * (math.sin(math.pi / 2 * middle) ** 2 - middle) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@functools.cache
def _beta_table(alpha: float, beta: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return angles θ from 0 to π/2 and the distribution function at sin²θ, each `[cells + 1]`.

    In the angle, the density is sin(θ)^(2α − 1) · cos(θ)^(2β − 1) times a constant: finite for α and β of ½ or more,
    where it is infinite in the share. Each cell is integrated by Gauss's rule with two points.
    """
    edges = np.linspace(0, math.pi / 2, _CELLS + 1)
    at = (edges[:-1, None] + edges[1:, None]) / 2 + np.array([-0.5, 0.5]) * (edges[1] - edges[0]) / math.sqrt(3)
    # By logarithms: large exponents would underflow.
    log_density = (2 * alpha - 1) * np.log(np.sin(at)) + (2 * beta - 1) * np.log(np.cos(at))
    below = np.concatenate([[0.0], np.cumsum(np.exp(log_density - log_density.max()).mean(axis=1))])
    return edges, below / below[-1]
