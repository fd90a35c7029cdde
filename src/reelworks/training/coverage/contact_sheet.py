"""Show clips as training reads them: frames, the crop, and companion files."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reelworks.core.hash_rng import Purpose, hash64
from reelworks.core.shape import Shape
from reelworks.data.catalog.sources import SOUNDS
from reelworks.data.loader import decode_requests
from reelworks.data.media import decode
from reelworks.data.media.decode import Frames, Request
from reelworks.data.media.decode_pool import load
from reelworks.data.media.reading import MediaError
from reelworks.data.media.sound import SoundRequest
from reelworks.data.schedule.plan import Samples
from reelworks.models import components
from reelworks.training.recipe.dataset import RecipeData


@dataclass(frozen=True)
class CompanionFrames:
    """Frames of a companion of a clip, or the first frame of the clip.

    Attributes:
        kind: One of `sources.KINDS`, "first_frame" or "last_frame".
        path: The companion file; empty for the clip's own first frame.
        frames: `[T, H, W, 3]` as training reads them; T = 1 for a first frame.
    """

    kind: str
    path: str
    frames: Frames


@dataclass(frozen=True)
class SampleView:
    """A clip as an epoch reads it.

    Attributes:
        path: "dataset/path" of the clip.
        source: Frames, height and width of the file as displayed.
        lost: Share of the frame's area that the crop cuts away.
        first_frame: Number of the first source frame read.
        step: Distance in source frames from one frame read to the next.
        window: (top, left, height, width) of the crop in `whole`; that of a rotated clip has the same size and centre.
        frames: `[T, H, W, 3]` frames that training reads; None if the clip cannot be read.
        whole: `[h, w, 3]` first frame read, resized, mirrored and recoloured as for training, but neither rotated nor
            cropped; None if it cannot be read.
        beside: Companions of the clip, and its first frame if the model is conditioned on it.
        error: Why the clip cannot be trained, or empty.
    """

    path: str
    caption: str
    source: Shape
    lost: float
    first_frame: int
    step: float
    window: tuple[int, int, int, int]
    frames: Frames | None
    whole: Frames | None
    beside: tuple[CompanionFrames, ...] = ()
    error: str = ""


def choose(data: RecipeData, entries: Samples, lost: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the indices of clips to show: the one that loses most, then others drawn from the recipe's seed."""
    order = np.argsort(hash64(data.recipe.seed, entries.uid, entries.copy, Purpose.SAMPLES), kind="stable")
    worst = int(np.argmax(lost))
    return np.asarray(np.r_[worst, order[order != worst]][:count])


def sample_views(data: RecipeData, entries: Samples, lost: NDArray[np.float64], *, epoch: int) -> list[SampleView]:
    """Read clips of one bucket, at least one, with the draws of an epoch, as training will.

    `lost` is the result of `discarded.lost_shares` for the clips.
    """
    rows, bucket = data.rows.find(entries.uid), int(entries.bucket[0])
    words = decode_requests.clip_hash(data, rows, entries.copy, epoch=epoch)
    built = decode_requests.decode_requests(data, rows, words, bucket)
    companions = decode_requests.companion_requests(data, rows, built)
    captions = decode_requests.captions_of(data, rows, words)
    return [
        _sample_view(data, row, share, request, {kind: all_[i] for kind, all_ in companions.items()}, captions[i])
        for i, (row, share, request) in enumerate(zip(rows.tolist(), lost.tolist(), built, strict=True))
    ]


def _sample_view(
    data: RecipeData,
    row: int,
    lost: float,
    request: Request,
    companions: dict[str, Request | SoundRequest | None],
    caption: str,
) -> SampleView:
    rows = data.rows
    source = Shape(int(rows.num_frames[row]), int(rows.height[row]), int(rows.width[row]))
    first, window, resized = placed(request, source)
    frames, whole, beside, error = None, None, list[CompanionFrames](), ""
    try:
        upright = replace(request.augmentation, degrees=0.0)
        frames, whole = load(request), load(replace(request, shape=resized, augmentation=upright))[0]
        wants = components.conditioning(data.recipe.model)
        if wants.shown.first is not None and len(frames) > 1:
            beside.append(CompanionFrames("first_frame", "", frames[:1]))
            if wants.shown.last:
                beside.append(CompanionFrames("last_frame", "", frames[-1:]))
        for kind, companion in companions.items():
            if companion is None:
                continue
            try:  # with the same errors as in training
                loaded = load(companion)
                if kind == "loss_mask" and not decode.has_white_area(loaded):
                    raise MediaError(decode.EMPTY)
            except MediaError as problem:
                raise MediaError(f"{kind} {companion.path}: {problem}") from problem
            if kind not in SOUNDS:
                beside.append(CompanionFrames(kind, str(companion.path), loaded))
    except MediaError as problem:
        error = str(problem)
    return SampleView(
        path=rows.label(row),
        caption=caption,
        source=source,
        lost=lost,
        first_frame=first,
        step=request.step,
        window=window,
        frames=frames,
        whole=whole,
        beside=tuple(beside),
        error=error,
    )


def placed(request: Request, source: Shape) -> tuple[int, tuple[int, int, int, int], Shape]:
    """Return the first frame and the crop of a request.

    Returns:
        The first frame's number; (top, left, height, width) of the crop in the resized frame; and the shape of the
        resized frames without the crop.
    """
    shape, box = request.shape, request.crop_box(source)
    indices = decode.frame_indices(source.num_frames, shape.num_frames, request.step, request.first_frame_draw)
    window = (box.top, box.left, shape.height, shape.width)
    first = request.first_frame + int(indices[0])
    return first, window, Shape(shape.num_frames, box.resized_height, box.resized_width)
