"""What the objective draws about the clips of a micro-batch: times, masks, captions left out.

Training and `reelworks replay` both draw here, so that what a replay tells is what was trained.

Legend: B clips, N latent frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.core import draws
from reelworks.core.draws import U64, Purpose
from reelworks.objective import masks, objectives, timesteps
from reelworks.objective.config import ObjectiveConfig
from reelworks.stream.batches import Work


@dataclass(frozen=True)
class Choices:
    """Draws of one micro-batch, on the CPU.

    Attributes:
        unshifted_time: `[B]` timesteps as their density gives them, in [0, 1000].
        time: `[B]` timesteps that are trained.
        frame_mask: `[B, N]` True where a latent frame is generated, False where it is given.
        drop_text: `[B]` True where the clip is shown with the empty caption.
    """

    unshifted_time: Tensor
    time: Tensor
    frame_mask: NDArray[np.bool_]
    drop_text: NDArray[np.bool_]


def words(work: Work, purpose: Purpose, *, seed: int) -> U64:
    """One word for each clip, from which all its draws for a purpose follow."""
    return draws.hash64(seed, work.epoch, work.uids, work.draw_copies, purpose)


def draw(work: Work, config: ObjectiveConfig, *, seed: int, latent_frames: int) -> Choices:
    """Draw for the clips of a micro-batch.

    Args:
        work: The micro-batch; neither its rank nor its order changes a draw.
        config: What is drawn, and how often.
        seed: The recipe's.
        latent_frames: Frames of the latents.
    """
    uniform_B = torch.from_numpy(draws.uniform(words(work, Purpose.TIMESTEP, seed=seed)))
    ratio = timesteps.shift_ratio(
        config,
        height=work.shape.height,
        width=work.shape.width,
        num_frames=work.shape.num_frames,
        latent_frames=latent_frames,
    )
    unshifted_B, time_B = objectives.of(config).times(uniform_B, ratio)
    return Choices(
        unshifted_B,
        time_B,
        masks.draw_frame_mask(config.mask_ratios, latent_frames, words(work, Purpose.MASK, seed=seed)),
        draws.passes(words(work, Purpose.TEXT_DROPOUT, seed=seed), config.caption_dropout),
    )
