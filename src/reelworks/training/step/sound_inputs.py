"""Choose for each clip what of picture and sound is generated, and at which timesteps.

Like all draws about a clip, these are functions of (seed, epoch, uid, copy, purpose). Legend: B clips, T latent frames,
F features of sound, N latent frames of sound.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.core import hash_rng
from reelworks.core.arrays import U64
from reelworks.core.hash_rng import Purpose
from reelworks.core.shape import Geometry, Shape
from reelworks.data.media.sound import SoundSpec
from reelworks.models.api import DenoiserInputs
from reelworks.models.objectives import timesteps
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.objectives.objectives import RectifiedFlow
from reelworks.models.sound.config import SoundConfig

_MODE, _TIME, NOISE = 1, 2, 3
# Timestep that stands in for that of a given modality, whose loss is zero, in weights that are infinite at 0.
_ANY_TIME = 500.0


@dataclass(frozen=True)
class SoundDraws:
    """Random draws about the sound of a micro-batch, on the CPU.

    Attributes:
        picture: `[B]` True for a clip whose picture is generated.
        sound: `[B]` True for a clip whose sound is generated.
        uniform: `[B]` draws of the sound's timesteps in [0, 1), the picture's if they are shared; None for timesteps that
            are given.
    """

    picture: NDArray[np.bool_]
    sound: NDArray[np.bool_]
    uniform: NDArray[np.float64] | None


def draw(config: SoundConfig, words_B: U64) -> SoundDraws:
    """Draw the modes of clips and the timesteps of their sound."""
    shares = config.shares()
    place_B = hash_rng.uniform(hash_rng.extend(words_B, Purpose.SOUND, _MODE))
    ends = np.cumsum([share for _, share in shares])
    mode_B = np.minimum(np.searchsorted(ends, place_B, side="right"), len(shares) - 1)
    names = np.array([name for name, _ in shares])[mode_B]
    drawn = (Purpose.SOUND, _TIME) if config.times == "independent" else (Purpose.TIMESTEP,)
    return SoundDraws(names != "sound", names != "video", hash_rng.uniform(hash_rng.extend(words_B, *drawn)))


def both(clips: int) -> SoundDraws:
    """Return the choices of clips whose picture and sound are generated at one timestep, as for validation."""
    every = np.ones(clips, dtype=np.bool_)
    return SoundDraws(every, every, None)


def times(chosen: SoundDraws, picture_B: Tensor, ratio: float, own: float | None, config: ObjectiveConfig) -> Tensor:
    """Return the sound's timesteps, of those that are trained, for the picture's, which are shifted by `ratio`; `own` is its shift."""
    if chosen.uniform is not None:
        return RectifiedFlow(config).times(torch.from_numpy(chosen.uniform), own or ratio)[1]
    if own is None or ratio in (own, 0):  # opensora_frame_quantization moves all to 0, from which nothing leads back
        return picture_B
    return timesteps.within(timesteps.shift(picture_B, own / ratio), *config.timestep_range)


def frame_of_sound(spec: SoundSpec, geometry: Geometry, shape: Shape) -> NDArray[np.int64]:
    """Return the latent frame of the picture that is seen at the beginning of each latent frame of sound, `[N]`."""
    seconds = np.arange(spec.latents(shape.num_frames)) / spec.latents_per_second
    frames = np.minimum((seconds * spec.frame_rate + 1e-6).astype(np.int64), shape.num_frames - 1)
    if geometry.frame_rule[1] == 1:  # the first frame has a latent frame of its own
        return np.asarray(-(-frames // geometry.stride[0]), dtype=np.int64)
    last = {n: geometry.latent(dataclasses.replace(shape, num_frames=n + 1))[0] - 1 for n in set(frames.tolist())}
    return np.array([last[n] for n in frames.tolist()], dtype=np.int64)


@dataclass(frozen=True)
class SoundTarget:
    """Target of the sound of a micro-batch.

    Attributes:
        x0: `[B, F, N, 1, 1]` clean latents.
        noise: `[B, F, N, 1, 1]` noise that was added.
        loss_weight: Weight of the sound's loss beside the picture's.
    """

    x0: Tensor
    noise: Tensor
    loss_weight: float


def loss_times(time_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the timesteps by which a loss is weighted: of a modality that is given, any but 0."""
    return torch.where(mask_BT.any(dim=1), time_B, torch.full_like(time_B, _ANY_TIME))


def trained_times(inputs: DenoiserInputs) -> Tensor:
    """Return the timestep of each clip that it counts for in reports: the picture's, or the sound's if that is given."""
    if inputs.sound is None:
        return inputs.time
    return torch.where(inputs.frame_mask.any(dim=1), inputs.time, inputs.sound.time)
