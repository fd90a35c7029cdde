"""The objectives, with a common interface for training and generation.

`times` maps `[B]` draws in [0, 1) to timesteps before and after the shift, `noised` blends latents `[B, C, T, H, W]`
with noise, and `losses` returns the loss of each clip, `[B]`, from the network's output `[B, C or 2·C, T, H, W]`. With
`weight_BTHW`, it is the weighted mean, so that a small mask counts as much as a large one; with the output of a `base`,
the target is what that says, in place of the clip. `of_error` returns it for an error that is given. `learns_variance`
tells whether the network outputs twice the channels, the second half for the variance.

Legend: B clips, C channels, T latent frames, H height, W width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal, final

import torch
from torch import Tensor

from reelworks.core import arguments
from reelworks.core.arguments import checked
from reelworks.core.words import named
from reelworks.models.objectives import ddpm, iddpm, loss_terms, rectified_flow, timesteps
from reelworks.models.objectives.config import NUM_TIMESTEPS, OF_RECIPES, ObjectiveConfig


class _ByDistance(ABC):
    """Objectives with the mean distance as loss, by the weight of each clip's timestep."""

    config: ObjectiveConfig

    @abstractmethod
    def error(self, output: Tensor, x0: Tensor, noise: Tensor, t_B: Tensor) -> Tensor:
        """Return the difference between an output and what it is trained towards."""

    @abstractmethod
    def weights(self, t_B: Tensor) -> Tensor | None:
        """Return the weight of each timestep, `[B]`; None if all are equal."""

    def losses(
        self,
        output: Tensor,
        x_t: Tensor,
        x0: Tensor,
        noise: Tensor,
        t_B: Tensor,
        frame_mask_BT: Tensor | None,
        weight_BTHW: Tensor | None = None,
        base: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of each clip."""
        error = self.error(output, x0, noise, t_B)
        if base is not None:
            error = error - self.error(base, x0, noise, t_B)
        return self.of_error(error, t_B, frame_mask_BT, weight_BTHW)

    def of_error(
        self, error: Tensor, t_B: Tensor, frame_mask_BT: Tensor | None, weight_BTHW: Tensor | None = None
    ) -> Tensor:
        """Return the loss of each clip for its errors."""
        distance = loss_terms.distance(self.config, t_B)
        loss_B = rectified_flow.mean_distance(error, frame_mask_BT, weight_BTHW, distance)
        weights_B = self.weights(t_B)
        return loss_B if weights_B is None else weights_B * loss_B


@final
class RectifiedFlow(_ByDistance):
    """Rectified flow: straight lines from noise to data, and the velocity along them (`models.objectives.rectified_flow`).

    Args:
        config: A recipe's `[objective]`, whose keys the keywords replace.
        shift: "auto" moves timesteps towards noise for large and long clips, "opensora-2.0" by the rule of that release,
            "none" leaves them unchanged, a number is a fixed ratio; None for that of the config, which is "auto".
        **settings: Other keys of `[objective]`, such as `timestep_sampling`, of timesteps and losses.

    Raises:
        UserError: A keyword is invalid, or the config is of another objective.

    Examples:
        >>> import torch, reelworks as rw
        >>> objective = rw.objectives.RectifiedFlow(timestep_sampling="uniform")
        >>> objective.times(torch.tensor([0.25, 0.5]), 1.0)[1]
        tensor([250., 500.])
    """

    learns_variance = False
    noised = staticmethod(rectified_flow.noised)

    @named(timestep_shift="shift")
    @checked(config=arguments.optional(arguments.a(ObjectiveConfig)))
    def __init__(
        self,
        config: ObjectiveConfig | None = None,
        *,
        shift: float | Literal["auto", "opensora-2.0", "none"] | None = None,
        **settings: Any,
    ) -> None:
        arguments.refuse_of_recipes(settings, OF_RECIPES)
        given = settings if shift is None else dict(**settings, timestep_shift=shift)
        self.config = config or ObjectiveConfig()
        if given:
            self.config = ObjectiveConfig(**(self.config.model_dump() | given))
        arguments.checked_value("name", self.config.name, arguments.one_of("rectified-flow"))

    def shift_ratio(
        self, *, height: int, width: int, num_frames: int, latent_frames: int, latent_area: int | None = None
    ) -> float:
        """Return the ratio by which `times` shifts clips of one shape; see `models.objectives.timesteps.shift_ratio`."""
        return timesteps.shift_ratio(
            self.config,
            height=height,
            width=width,
            num_frames=num_frames,
            latent_frames=latent_frames,
            latent_area=latent_area,
        )

    def times(self, uniform_B: Tensor, shift: float) -> tuple[Tensor, Tensor]:
        """Map draws to timesteps of the configured density and range, before and after the shift."""
        first, last = self.config.timestep_range
        low, high = (timesteps.share_below(t, self.config, shift) for t in (first, last))
        t_B = timesteps.sample(low + uniform_B * (high - low), self.config)
        return t_B, timesteps.within(timesteps.shift(t_B, shift), first, last)

    def error(self, output: Tensor, x0: Tensor, noise: Tensor, t_B: Tensor) -> Tensor:
        """Return the difference between the velocity of an output and that of the clip."""
        if self.config.prediction == "sample":  # of velocities from one x_t, whatever noise that has
            return rectified_flow.velocity_from(output.float(), x0.float(), t_B, "sample")
        return output[:, : x0.shape[1]].float() - (x0.float() - noise.float())

    def weights(self, t_B: Tensor) -> Tensor | None:
        """Return the weights of timesteps in the loss of the velocity."""
        share_B = t_B / NUM_TIMESTEPS
        return loss_terms.weights(self.config, 1 - share_B, share_B, "velocity")


def _uniform_steps(uniform_B: Tensor, shift: float) -> tuple[Tensor, Tensor]:
    """Map draws to steps of uniform density, without a shift."""
    t_B = torch.floor(uniform_B * ddpm.NUM_STEPS).float()
    return t_B, t_B


@final
class Iddpm:
    """Diffusion with a learned variance (`models.objectives.iddpm`)."""

    learns_variance = True
    times = staticmethod(_uniform_steps)
    noised = staticmethod(iddpm.noised)

    def losses(self, output: Tensor, *others: Any, **named: Any) -> Tensor:
        """Return the sum of `iddpm.terms`: the squared error of the noise and the bound that trains the variance, of each clip."""
        mse_B, bound_B = iddpm.terms(output, *others, **named)
        return mse_B + bound_B


@final
@dataclass(frozen=True)
class Ddpm(_ByDistance):
    """Diffusion with prediction of the noise ("epsilon") or "v" (`models.objectives.ddpm`)."""

    prediction: ddpm.Prediction
    config: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    learns_variance = False
    times = staticmethod(_uniform_steps)

    def __post_init__(self) -> None:
        arguments.check(self, {"prediction": ddpm.PREDICTION})
        own = next(name for name, prediction in PREDICTIONS.items() if prediction == self.prediction)
        if self.config == ObjectiveConfig():
            object.__setattr__(self, "config", self.config.model_copy(update={"name": own}))
        arguments.checked_value("name", self.config.name, arguments.one_of(own))

    def noised(self, x0: Tensor, noise: Tensor, t_B: Tensor, frame_mask_BT: Tensor | None) -> Tensor:
        """Blend latents with noise; conditioning frames stay clean."""
        return ddpm.noised(x0, noise, t_B, frame_mask_BT, self.config.zero_terminal_snr)

    def target(self, x0: Tensor, noise: Tensor, t_B: Tensor) -> Tensor:
        """Return the noise or v of the clip."""
        return ddpm.target(self.prediction, x0, noise, t_B, self.config.zero_terminal_snr)

    def error(self, output: Tensor, x0: Tensor, noise: Tensor, t_B: Tensor) -> Tensor:
        """Return the difference between an output and the noise or v of the clip."""
        return output.float() - self.target(x0.float(), noise.float(), t_B)

    def weights(self, t_B: Tensor) -> Tensor | None:
        """Return the weights of steps in the loss of the noise or v."""
        data_B, noise_B = (factor.flatten() for factor in ddpm.weights(t_B, self.config.zero_terminal_snr))
        predicted: loss_terms.Predicted = "noise" if self.prediction == "epsilon" else "velocity"
        return loss_terms.weights(self.config, data_B, noise_B, predicted)


Objective = RectifiedFlow | Iddpm | Ddpm
PREDICTIONS: dict[str, ddpm.Prediction] = {"epsilon": "epsilon", "v-prediction": "v"}


def from_config(config: ObjectiveConfig) -> Objective:
    """Return the objective that a recipe names."""
    if config.name in PREDICTIONS:
        return Ddpm(PREDICTIONS[config.name], config)
    return Iddpm() if config.name == "iddpm" else RectifiedFlow(config)
