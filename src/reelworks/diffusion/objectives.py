"""The objectives by name: what training and generation ask of either.

Legend: B clips, C channels, T latent frames, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, final

import torch
from torch import Tensor

from reelworks.diffusion import ddpm, iddpm, rectified_flow, timesteps
from reelworks.diffusion.config import ObjectiveConfig


class Objective(Protocol):
    """An objective, as functions of tensors."""

    @property
    def learns_variance(self) -> bool:
        """Whether the loss reads a second half of channels."""
        ...

    def times(self, uniform_B: Tensor, shift: float) -> tuple[Tensor, Tensor]:
        """Map `[B]` draws in [0, 1) to timesteps, before and after the shift."""
        ...

    def noised(self, x0: Tensor, noise: Tensor, t_B: Tensor, frame_mask_BT: Tensor | None) -> Tensor:
        """Blend latents `[B, C, T, H, W]` with noise."""
        ...

    def losses(
        self,
        output: Tensor,
        x_t: Tensor,
        x0: Tensor,
        noise: Tensor,
        t_B: Tensor,
        frame_mask_BT: Tensor | None,
        weight_BTHW: Tensor | None = None,
    ) -> Tensor:
        """Loss of each clip, `[B]`, from the network's output `[B, C or 2·C, T, H, W]`.

        Where there are weights, it is the mean by them, so that a small mask counts as much as a large one.
        """
        ...


@final
class RectifiedFlow:
    """Rectified flow: straight lines from noise to data, and the velocity along them (`diffusion.rectified_flow`).

    Args:
        config: `[objective]` of a recipe; without it the keywords hold.
        shift: "auto" moves timesteps towards noise for large and long clips, "none" leaves them, a number is a ratio.
        **settings: Other keys of `[objective]`, such as `timestep_sampling`.

    Examples:
        >>> import torch, reelworks as rw
        >>> objective = rw.objectives.RectifiedFlow(timestep_sampling="uniform")
        >>> objective.times(torch.tensor([0.25, 0.5]), 1.0)[1]
        tensor([250., 500.])
    """

    learns_variance = False

    def __init__(
        self,
        config: ObjectiveConfig | None = None,
        *,
        shift: float | Literal["auto", "none"] = "auto",
        **settings: Any,
    ) -> None:
        self.config = config or ObjectiveConfig.model_validate({"timestep_shift": shift, **settings})

    def shift_ratio(self, *, height: int, width: int, num_frames: int, latent_frames: int) -> float:
        """Ratio by which `times` shifts clips of one shape; see `diffusion.timesteps.shift_ratio`."""
        return timesteps.shift_ratio(
            self.config, height=height, width=width, num_frames=num_frames, latent_frames=latent_frames
        )

    def times(self, uniform_B: Tensor, shift: float) -> tuple[Tensor, Tensor]:
        """Timesteps of the recipe's density, within its range."""
        config = self.config
        kind, mean, std = config.timestep_sampling, config.logit_mean, config.logit_std
        first, last = config.timestep_range
        low, high = (timesteps.share_below(t, kind, shift, mean, std) for t in (first, last))
        t_B = timesteps.sample(low + uniform_B * (high - low), kind, mean, std)
        return t_B, timesteps.within(timesteps.shift(t_B, shift), first, last)

    def noised(self, x0: Tensor, noise: Tensor, t_B: Tensor, frame_mask_BT: Tensor | None) -> Tensor:
        """Blend on straight lines; conditioning frames stay clean."""
        return rectified_flow.noised(x0, noise, t_B, frame_mask_BT)

    def losses(
        self,
        output: Tensor,
        x_t: Tensor,
        x0: Tensor,
        noise: Tensor,
        t_B: Tensor,
        frame_mask_BT: Tensor | None,
        weight_BTHW: Tensor | None = None,
    ) -> Tensor:
        """Squared error of the velocity."""
        velocity = rectified_flow.velocity_from(output, x_t, t_B, self.config.prediction)
        return rectified_flow.loss_per_sample(velocity, x0, noise, frame_mask_BT, weight_BTHW)


@final
@dataclass(frozen=True)
class Iddpm:
    """See `diffusion.iddpm`."""

    learns_variance: bool = True

    def times(self, uniform_B: Tensor, shift: float) -> tuple[Tensor, Tensor]:
        """Every step alike; nothing is shifted."""
        return _whole_step(uniform_B, iddpm.NUM_STEPS)

    def noised(self, x0: Tensor, noise: Tensor, t_B: Tensor, frame_mask_BT: Tensor | None) -> Tensor:
        """Blend by the schedule of variances."""
        return iddpm.noised(x0, noise, t_B, frame_mask_BT)

    def losses(
        self,
        output: Tensor,
        x_t: Tensor,
        x0: Tensor,
        noise: Tensor,
        t_B: Tensor,
        frame_mask_BT: Tensor | None,
        weight_BTHW: Tensor | None = None,
    ) -> Tensor:
        """Squared error of the noise, and the bound that teaches the variance."""
        mse_B, bound_B = iddpm.terms(output, x_t, x0, noise, t_B, frame_mask_BT, weight_BTHW)
        return mse_B + bound_B


@final
@dataclass(frozen=True)
class Ddpm:
    """See `diffusion.ddpm`."""

    prediction: ddpm.Prediction
    learns_variance: bool = False

    def times(self, uniform_B: Tensor, shift: float) -> tuple[Tensor, Tensor]:
        """Every step alike; nothing is shifted."""
        return _whole_step(uniform_B, ddpm.NUM_STEPS)

    def noised(self, x0: Tensor, noise: Tensor, t_B: Tensor, frame_mask_BT: Tensor | None) -> Tensor:
        """Blend by the schedule of variances."""
        return ddpm.noised(x0, noise, t_B, frame_mask_BT)

    def losses(
        self,
        output: Tensor,
        x_t: Tensor,
        x0: Tensor,
        noise: Tensor,
        t_B: Tensor,
        frame_mask_BT: Tensor | None,
        weight_BTHW: Tensor | None = None,
    ) -> Tensor:
        """Squared error of what is predicted."""
        return ddpm.loss_per_sample(self.prediction, output, x0, noise, t_B, frame_mask_BT, weight_BTHW)


def _whole_step(uniform_B: Tensor, num_steps: int) -> tuple[Tensor, Tensor]:
    t_B = torch.floor(uniform_B * num_steps).float()
    return t_B, t_B


PREDICTIONS: dict[str, ddpm.Prediction] = {"epsilon": "epsilon", "v-prediction": "v"}


def from_config(config: ObjectiveConfig) -> Objective:
    """The recipe's objective."""
    if config.name in PREDICTIONS:
        return Ddpm(PREDICTIONS[config.name])
    return Iddpm() if config.name == "iddpm" else RectifiedFlow(config)
