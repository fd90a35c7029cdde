"""Noise that is added to latents: standard normal, and with the parts that `[objective]` asks for.

The parts are those of N. Guttenberg ("Diffusion with offset noise", 2023), J. Whitaker ("Multi-resolution noise for diffusion
model training", 2023) and M. Ning et al. ("Input perturbation reduces exposure bias in diffusion models", arXiv:2301.11706),
with the formulas and the order of sd-scripts. What they draw or measure for a batch is of each clip here, so that no clip
depends on the others.

Legend: B clips, C channels, T latent frames, H height, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from reelworks.core import hash_rng
from reelworks.core.arrays import U64
from reelworks.core.hash_rng import Purpose
from reelworks.data.loader.upload import to_device
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.training.step import draws


def of_clips(config: ObjectiveConfig, x0_BCTHW: Tensor, seeds_B: U64) -> tuple[Tensor, Tensor]:
    """Return the noise that clips are to be trained on, and that which is added to their latents."""
    shape, device = tuple(x0_BCTHW.shape[1:]), x0_BCTHW.device
    noise = draws.normal(shape, seeds_B, device)
    if config.noise_offset:
        seeds = hash_rng.extend(seeds_B, Purpose.NOISE_OFFSET)
        noise += _strength(config, x0_BCTHW, seeds) * draws.normal((shape[0], 1, 1, 1), seeds, device)
    if config.multires_noise_iterations:
        for clip, seed in zip(noise, hash_rng.extend(seeds_B, Purpose.MULTIRES_NOISE), strict=True):
            _add_resolutions(config, clip, seed.reshape(1))
    if not config.input_perturbation:
        return noise, noise
    more = draws.normal(shape, hash_rng.extend(seeds_B, Purpose.INPUT_PERTURBATION), device)
    return noise, noise + config.input_perturbation * more


def _strength(config: ObjectiveConfig, x0_BCTHW: Tensor, seeds_B: U64) -> Tensor:
    """Return the strength of each clip's offset, `[B, 1 or C, 1, 1, 1]`."""
    chosen = hash_rng.bernoulli(hash_rng.extend(seeds_B, "chosen"), config.noise_offset_probability)
    strength = chosen * config.noise_offset
    if config.noise_offset_random_strength:
        strength = strength * hash_rng.uniform(hash_rng.extend(seeds_B, "strength"))
    strength_B = to_device(torch.from_numpy(strength).float(), x0_BCTHW.device).view(-1, 1, 1, 1, 1)
    if not config.adaptive_noise_scale:
        return strength_B
    means = x0_BCTHW.float().mean(dim=(2, 3, 4), keepdim=True).abs()
    return torch.where(strength_B > 0, (strength_B + config.adaptive_noise_scale * means).clamp(min=0), strength_B)


def _add_resolutions(config: ObjectiveConfig, noise_CTHW: Tensor, seed_1: U64) -> None:
    """Add noise of coarser and coarser resolutions to that of one clip, and scale the sum to a deviation of 1."""
    channels, frames, height, width = noise_CTHW.shape
    for level in range(config.multires_noise_iterations):
        ratio = 2 + 2 * float(hash_rng.uniform(hash_rng.extend(seed_1, level, "ratio"))[0])
        size = max(1, int(height / ratio**level)), max(1, int(width / ratio**level))
        coarse = draws.normal((channels, frames, *size), hash_rng.extend(seed_1, level), noise_CTHW.device)[0]
        noise_CTHW += interpolate(coarse, (height, width), mode="bilinear") * config.multires_noise_discount**level
        if 1 in size:
            break
    noise_CTHW /= noise_CTHW.std()
