"""Turn clips of a plan into decode requests and captions; every random choice about a clip is drawn here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reelworks.catalog import frame_index, template
from reelworks.catalog.companions import Found
from reelworks.catalog.filter_expression import NUMBERS
from reelworks.catalog.rows import CatalogRows
from reelworks.core import hash_rng
from reelworks.core.hash_rng import Purpose
from reelworks.core.shape import Shape
from reelworks.data.dataset import Dataset
from reelworks.media import decode
from reelworks.media.decode import MediaError, Request


def decode_requests(
    data: Dataset, rows: NDArray[np.int64], copies: NDArray[np.int64], bucket: int, *, epoch: int
) -> list[Request]:
    """Return the decode requests of clips, by index in `data.rows`, that an epoch shows in one bucket.

    `copies` combine `copy` and `repeat_index` of each clip, as `schedule.plan.draw_copies` numbers them.
    """
    config, shape, r = data.spec.data, data.table.buckets[bucket].shape, data.rows
    first, down, across = _draws(data, r.uid[rows], copies, epoch)
    requests = [
        Request(
            path=r.file(row),
            is_image=bool(r.is_image[row]),
            shape=shape,
            step=float(decode.frame_step(float(r.fps[row]), config)),
            first_frame_draw=float(first[i]),
            crop_draw=(float(down[i]), float(across[i])),
            short_clips=config.short_clips,
            first_frame=int(r.first_frame[row]),
            num_frames=int(r.num_frames[row]) if r.is_range[row] else None,
            measures=Shape(int(r.num_frames[row]), int(r.height[row]), int(r.width[row])) if data.companions else None,
        )
        for i, row in enumerate(rows.tolist())
    ]
    return [_with_spot(data, row, request) for row, request in zip(rows.tolist(), requests, strict=True)]


def _with_spot(data: Dataset, row: int, request: Request) -> Request:
    """Add the place of the frames of a long video, if the catalog knows its frame times."""
    r = data.rows
    if not (r.is_range[row] or r.duration_seconds[row] >= frame_index.FROM_SECONDS):
        return request
    times = data.frame_index.get(r.fingerprint[row].as_py())
    try:
        return request if times is None else replace(request, spot=decode.spot(request, times))
    except MediaError:
        return request  # decoding reports it


def companion_requests(
    data: Dataset, rows: NDArray[np.int64], own: Sequence[Request]
) -> dict[str, tuple[Request | None, ...]]:
    """Return decode requests of companions by kind, with the frames and crops of the clips' `own` requests.

    A request is None where the clip's dataset has no companion of the kind.
    """
    return {
        kind: tuple(_of_companion(c, row, request) for row, request in zip(rows.tolist(), own, strict=True))
        for kind, c in data.companions.items()
    }


def _of_companion(companions: Found, row: int, own: Request) -> Request | None:
    at = int(companions.row[row])
    if at < 0:
        return None
    is_image = companions.rows.kind[at].as_py() == "image"
    return replace(
        own, path=companions.rows.file(at), is_image=is_image, nearest=companions.kind == "loss_mask", spot=None
    )


def _draws(
    data: Dataset, uids: NDArray[np.uint64], copies: NDArray[np.int64], epoch: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Draw the start of each clip and its crop along height and width, all in [0, 1)."""
    seed, config = data.spec.seed, data.spec.data
    first, down, across = np.zeros(len(uids)), np.full(len(uids), 0.5), np.full(len(uids), 0.5)
    if config.clip_start == "random":
        first = hash_rng.uniform(hash_rng.hash64(seed, epoch, uids, copies, Purpose.FIRST_FRAME))
    if config.crop == "random":
        down, across = (
            hash_rng.uniform(hash_rng.hash64(seed, epoch, uids, copies, Purpose.CROP, axis)) for axis in (0, 1)
        )
    return first, down, across


def shown_fps(data: Dataset, row: int) -> float:
    """Return the frames per second of a row's clip that the model gets as conditioning."""
    if data.rows.is_image[row]:
        return decode.IMAGE_FPS
    fps = float(data.rows.fps[row])
    return fps / float(decode.frame_step(fps, data.spec.data))


def caption_of_row(data: Dataset, row: int) -> str:
    """Return the caption template of a row's dataset, filled with the row's caption and numbers."""
    rows = data.rows
    name = rows.dataset[row].as_py()
    dataset = next(d for d in data.spec.datasets if d.dataset_name == name)
    form, text = dataset.caption, rows.caption[row].as_py() or dataset.missing_caption
    assert text is not None, "clips without a caption are excluded unless missing_caption is set"
    numbers = {column: _number(rows, row, column) for column in template.names(form)}
    return template.fill(form, text, numbers)


def _number(rows: CatalogRows, row: int, column: str) -> float:
    if column == "caption_length":
        return len(rows.caption[row].as_py() or "")
    if column in NUMBERS:
        return float(getattr(rows, column)[row])
    return float(rows.scores[column][row]) if column in rows.scores else math.nan
