"""Names and sizes of the sources of an edit: pictures or clips in order, of which each clip may have another number.

A source may have a sound of its own, or be a sound alone, which has a name beside that of the source.

A source with the aspect ratio of its clip shows the same part of it, in its size. One of another aspect ratio has a size
of its own: about the area of the clip, in a ratio of a few dozen, so that many clips can share a micro-batch. Some models
take pictures in one size, whatever the size of their clips.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from reelworks.core.shape import Shape

ALIGNED = -128  # in place of a ratio, for a source that shows the same part as its clip
_STEP = 1.1  # from one ratio of width to height to the next; at most 5 % of a side is cropped
_MOST = 24  # a ratio of 1 : 10
ASPECT_TOLERANCE = 0.02  # difference that rounding to even sizes causes in a small frame
SOURCES = ("source", *(f"source-{number}" for number in range(2, 13)))
SOUNDS = tuple(f"{name}-sound" for name in SOURCES)
REJECTED = "rejected"
KINDS = ("control", *SOURCES, "mask", "loss_mask", REJECTED)  # of companions, by which their datasets' names end
IN_ORDER = tuple(itertools.chain(*zip(SOUNDS, SOURCES, strict=True)))  # a clip's sound is told before its frames


def ratios(width: Any, height: Any, clip_width: Any, clip_height: Any) -> Any:
    """Return the number of each source's ratio of width to height, or `ALIGNED` if it is that of its clip."""
    own, clip = (np.log(np.maximum(w, 1) / np.maximum(h, 1)) for w, h in ((width, height), (clip_width, clip_height)))
    number = np.clip(np.round(own / math.log(_STEP)), -_MOST, _MOST).astype(np.int64)
    return np.where(np.abs(own - clip) <= ASPECT_TOLERANCE, ALIGNED, number)


def own_shape(clip: Shape, ratio: int, multiple: tuple[int, int], shorter: int | None = None) -> Shape:
    """Return the shape of a source beside a clip of this shape, with sides that are multiples of a height and a width.

    With the length of its `shorter` side, it is that of a single picture.
    """
    if ratio == ALIGNED and shorter is None:
        return clip
    aspect = clip.width / clip.height if ratio == ALIGNED else _STEP**ratio
    area = clip.height * clip.width if shorter is None else shorter**2 * max(aspect, 1 / aspect)
    width = math.sqrt(area * aspect)
    height, width = (
        max(round(side / unit), 1) * unit for side, unit in zip((area / width, width), multiple, strict=True)
    )
    return Shape(clip.num_frames if shorter is None else 1, height, width)


def sound_of(source: str) -> str:
    """Return the name of the sound of a source."""
    return SOUNDS[SOURCES.index(source)]


def source_of(name: str) -> str:
    """Return the source whose sound has this name; any other name is returned as it is."""
    return SOURCES[SOUNDS.index(name)] if name in SOUNDS else name


def named(values: str | list[str] | tuple[str, ...] | None) -> dict[str, str]:
    """Return folders or files of sources by name, in order; one may be given without a list."""
    return dict(zip(SOURCES, [values] if isinstance(values, str) else values or (), strict=False))
