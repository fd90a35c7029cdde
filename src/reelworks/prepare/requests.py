"""From places of a plan to what is read of each file: every choice about a clip, drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reelworks.core import draws
from reelworks.core.draws import Purpose
from reelworks.media import sampling
from reelworks.media.load import Request
from reelworks.prepare.data import RecipeData


def build(
    data: RecipeData, rows: NDArray[np.int64], copies: NDArray[np.int64], bucket: int, *, epoch: int
) -> list[Request]:
    """Say what an epoch reads of clips that it shows in one bucket.

    Args:
        data: The recipe's data.
        rows: Places of the clips in `data.rows`.
        copies: Which repeat and showing of each, as `schedule.plan.draw_copies` tells them.
        bucket: Index into the bucket table.
        epoch: Number of the epoch, from 0.
    """
    config, shape = data.recipe.data, data.table.buckets[bucket].shape
    first, down, across = _draws(data, data.rows.uid[rows], copies, epoch)
    return [
        Request(
            path=data.rows.file(row),
            is_image=bool(data.is_image[row]),
            shape=shape,
            step=float(sampling.frame_step(float(data.rows.fps[row]), config)),
            first_frame_draw=float(first[i]),
            crop_draw=(float(down[i]), float(across[i])),
            short_clips=config.short_clips,
        )
        for i, row in enumerate(rows.tolist())
    ]


def _draws(
    data: RecipeData, uids: NDArray[np.uint64], copies: NDArray[np.int64], epoch: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Where each clip begins, and where it is cropped along height and width; in [0, 1)."""
    seed, config = data.recipe.seed, data.recipe.data
    first, down, across = np.zeros(len(uids)), np.full(len(uids), 0.5), np.full(len(uids), 0.5)
    if config.first_frame == "random":
        first = draws.uniform(draws.hash64(seed, epoch, uids, copies, Purpose.FIRST_FRAME))
    if config.crop == "random":
        down, across = (
            draws.uniform(draws.hash64(seed, epoch, uids, copies, Purpose.CROP, axis)) for axis in (0, 1)
        )
    return first, down, across


def shown_fps(data: RecipeData, row: int) -> float:
    """Frames per second of a row's clip as the model is told them."""
    if data.is_image[row]:
        return sampling.IMAGE_FPS
    fps = float(data.rows.fps[row])
    return fps / float(sampling.frame_step(fps, data.recipe.data))
