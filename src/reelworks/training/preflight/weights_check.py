"""Tell whether a network predicts as trained ones do: its error on a drawn picture, beside that of the best straight line.

At each timestep a line that was fitted to the answer, for each channel one, predicts the target from the noised latents. It
knows how strong picture and noise are, and no more. Trained networks are nearer than it, whatever their family and units. Fresh ones
are not, and neither are most that were read wrongly; what one picture does not depend on, it does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import reelworks
from reelworks.core.errors import UserError
from reelworks.data.buckets.table import Bucket
from reelworks.models import identify
from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.models.objectives import objectives
from reelworks.models.objectives.objectives import Ddpm, Objective, RectifiedFlow
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.memory import dry_run
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step.examples import Predicted

CAPTION = "hills below a low sun, in the colours of the evening"
TRAINED = 0.9  # of the error of the line, of which trained weights have less
# How many times as strong as the noise the picture is, at the timesteps of the check. Where it is weaker, a good network, too, is
# not far below the line.
_STRENGTHS = (3.0, 1.5, 0.8)
_MOST = 10.0  # beyond which no number is told


@dataclass(frozen=True)
class WeightsReport:
    """Prediction of a network with some weights.

    Attributes:
        weights: Where they were read.
        error: Squared error by timestep, of that of the best line.
        versions: Those of the programs that read them.
    """

    model: str
    weights: str
    tensors: int
    parameters: int
    error: dict[str, float]
    versions: str

    @property
    def is_trained(self) -> bool:
        """Whether the network is nearer than the line at each timestep."""
        return all(error < TRAINED for error in self.error.values())

    def __str__(self) -> str:
        shares = {t: f"{e:.0%}" if e < _MOST else f"over {_MOST:.0%}" for t, e in self.error.items()}
        errors = ", ".join(f"{share} at {time}" for time, share in shares.items())
        return (
            f"weights: {self.model} of {self.weights}, {self.tensors:,} tensors, {self.parameters:,} parameters; "
            f"error beside the best line: {errors}; trained ones have less than {TRAINED:.0%} ({self.versions})"
        )

    @property
    def fault(self) -> UserError | None:
        """The error for weights that are not trained."""
        if self.is_trained:
            return None
        return UserError(
            "the network predicts no better than a line through the noised latents",
            code="weights-not-trained",
            field="model.weights",
            value=self.weights,
            remedy="compare model.name, objective.name and autoencoder.name with those that the weights were published with",
        )


@torch.no_grad()
def run(recipe: Recipe, denoiser: Denoiser, encoder: FrozenEncoders, buckets: Sequence[Bucket]) -> WeightsReport:
    """Predict a drawn picture, as a clip that stands still where no bucket is of pictures.

    Raises:
        UserError: The recipe names no weights.
    """
    if recipe.model.weights is None:
        raise UserError(
            "there are no weights to check",
            code="no-weights-to-check",
            field="model.weights",
            remedy="set it to a folder, a file or a hub id",
        )
    bucket = min(buckets, key=lambda one: (one.shape.num_frames, -one.tokens))
    shape, device = bucket.shape, encoder.device
    frame = torch.from_numpy(picture(shape.height, shape.width)).permute(2, 0, 1)
    video = frame[None, :, None].expand(1, 3, shape.num_frames, -1, -1).to(device)
    x0 = encoder.autoencoder.encode(video).float()
    noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0)).to(device)
    text, blank = encoder.texts([CAPTION], [False]), dry_run.blank(encoder, bucket, 1, device)
    inputs = replace(blank, text=text.tokens.to(device), text_mask=text.mask.to(device), pooled=text.pooled.to(device))
    objective, boundary = objectives.from_config(recipe.objective.for_validation()), DtypeBoundary(denoiser)
    error = {
        f"{time:g}": _error(objective, boundary, inputs, x0, noise, time)
        for time in _times(objective, *recipe.objective.timestep_range)
    }
    tensors = identify.network(recipe.model.name).state_dict()  # all of which were found, or loading had failed
    return WeightsReport(
        recipe.model.name,
        recipe.model.weights,
        len(tensors),
        sum(tensor.numel() for tensor in tensors.values()),
        error,
        f"reelworks {reelworks.__version__}, torch {torch.__version__}",
    )


def _times(objective: Objective, first: float, last: float) -> list[float]:
    """Return the timesteps within a range at which the picture has the wanted strengths, or else the nearest one."""
    times = torch.arange(1, 1000, dtype=torch.float32)
    one, none = torch.ones(len(times), 1, 1, 1, 1), torch.zeros(len(times), 1, 1, 1, 1)
    picture, noise = (objective.noised(*pair, times, None).flatten() for pair in ((one, none), (none, one)))
    nearest = (float(times[(picture / noise - wanted).abs().argmin()]) for wanted in _STRENGTHS)
    return list(dict.fromkeys(min(max(time, first), last) for time in nearest))


def _error(
    objective: Objective,
    boundary: DtypeBoundary[DenoiserInputs],
    inputs: DenoiserInputs,
    x0: Tensor,
    noise: Tensor,
    time: float,
) -> float:
    """Return the squared error of the network over that of the best line."""
    t_B = torch.full((1,), time, device=x0.device)
    x_t = objective.noised(x0, noise, t_B, None)
    sources = inputs.latent.shape[2] - x0.shape[2]  # frames that stand before those of the clip
    shown = replace(inputs, latent=torch.cat([inputs.latent[:, :, :sources], x_t], dim=2), time=t_B)
    output = Predicted.from_inputs(boundary, shown).picture[:, : x0.shape[1], sources:].float()
    if isinstance(objective, RectifiedFlow):
        target, error = x0 - noise, objective.error(output, x0, noise, t_B)
    else:
        target = objective.target(x0, noise, t_B) if isinstance(objective, Ddpm) else noise
        error = output - target
    # The lines `[C]` through the target over the noised latents with the least error.
    x, y = (each[0].flatten(1) - each[0].flatten(1).mean(dim=1, keepdim=True) for each in (x_t, target))
    slope = (x * y).sum(1, keepdim=True) / x.square().sum(1, keepdim=True)
    return float(error.square().sum() / (y - slope * x).square().sum())


def picture(height: int, width: int) -> NDArray[np.float32]:
    """Draw hills below a sun, `[height, width, 3]` in -1 to 1."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : width / height : width * 1j].astype(np.float32)
    sun = np.hypot(x - 0.7 * width / height, y - 0.35) < 0.12
    drawn = np.stack([0.9 - 0.2 * y, 0.6 - 0.5 * y, 0.3 + 0.3 * y], axis=-1)
    drawn[sun] = (1.0, 0.9, 0.6)
    for number, (top, slope) in enumerate(((0.55, 0.1), (0.68, 0.06), (0.82, 0.04))):
        ridge = top + slope * np.sin(5 * x + 2 * number) + 0.4 * slope * np.sin(17 * x + number)
        drawn[y > ridge] = np.array((0.35, 0.25, 0.3), dtype=np.float32) * (1 - 0.25 * number)
    return 2 * drawn - 1
