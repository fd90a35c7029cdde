"""From places of a plan to what is read of each file: every choice about a clip, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reelworks.catalog.companions import Found
from reelworks.core import draws
from reelworks.core.draws import Purpose
from reelworks.media import sampling
from reelworks.media.load import Measures, Request
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
    r = data.rows
    first, down, across = _draws(data, data.rows.uid[rows], copies, epoch)
    return [
        Request(
            path=data.rows.file(row),
            is_image=bool(data.rows.is_image[row]),
            shape=shape,
            step=float(sampling.frame_step(float(data.rows.fps[row]), config)),
            first_frame_draw=float(first[i]),
            crop_draw=(float(down[i]), float(across[i])),
            short_clips=config.short_clips,
            measures=Measures(int(r.num_frames[row]), int(r.height[row]), int(r.width[row]))
            if data.companions
            else None,
        )
        for i, row in enumerate(rows.tolist())
    ]


def of_companions(
    data: RecipeData, rows: NDArray[np.int64], own: Sequence[Request]
) -> dict[str, tuple[Request | None, ...]]:
    """Say what is read of companions, by kind: the same moments and the same part as of their clips.

    Args:
        data: The recipe's data.
        rows: Places of the clips in `data.rows`.
        own: What is read of the clips.

    Returns:
        A request for each clip, None where its dataset has no such companion.
    """
    return {
        kind: tuple(
            _of_companion(found, row, request) for row, request in zip(rows.tolist(), own, strict=True)
        )
        for kind, found in data.companions.items()
    }


def _of_companion(found: Found, row: int, own: Request) -> Request | None:
    at = int(found.row[row])
    if at < 0:
        return None
    is_image = found.rows.kind[at].as_py() == "image"
    return replace(own, path=found.rows.file(at), is_image=is_image, nearest=found.kind == "loss_mask")


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
    if data.rows.is_image[row]:
        return sampling.IMAGE_FPS
    fps = float(data.rows.fps[row])
    return fps / float(sampling.frame_step(fps, data.recipe.data))
