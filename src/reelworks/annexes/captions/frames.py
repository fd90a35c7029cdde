"""Read evenly spaced frames of clips, small enough to be shown to a captioner."""

from __future__ import annotations

import io
from functools import partial
from typing import NamedTuple

from PIL import Image

from reelworks.annexes.captions.answers import CaptionFailed
from reelworks.annexes.captions.clips import CaptionClip
from reelworks.core.arrays import Frames
from reelworks.core.shape import Shape
from reelworks.data.catalog.scan import clip_ranges
from reelworks.data.media import decode, frame_times, probe, reading
from reelworks.data.media.decode import Request
from reelworks.data.media.location import MediaPath
from reelworks.data.media.reading import MediaError

_JPEG_QUALITY = 90


class Shown(NamedTuple):
    """The kind, "picture" or "video", of a clip, frames `[T, H, W, 3]` uint8 RGB, and how many of these are in a second."""

    kind: str
    frames: Frames
    fps: float


def read(clip: CaptionClip, count: int, most_px: int) -> Shown:
    """Return frames of a clip, as a player shows them.

    Args:
        count: Frames of a video: the middle ones of as many equal parts; fewer if it is shorter.
        most_px: Longest side of a frame; smaller ones keep their size.

    Raises:
        CaptionFailed: The file is missing or damaged.
    """
    try:
        return reading.with_reasons(clip.file, lambda path: _read(path, clip.range, count, most_px))
    except MediaError as error:
        raise CaptionFailed(str(error), of_clip=True) from None


def _read(path: MediaPath, text: str, count: int, most_px: int) -> Shown:
    facts = probe.probe(path)
    first, total = 0, facts.num_frames
    if text:
        (found,) = clip_ranges.find(path, "list", text, partial(frame_times.read, path))
        first, total = found.first_frame, found.num_frames
    taken = min(count, total)
    scale = min(most_px / max(facts.height, facts.width), 1.0)
    height, width = (max(round(side * scale), 1) for side in (facts.height, facts.width))
    frames = decode.load(
        Request(
            path,
            facts.kind == "image",
            Shape(taken, height, width),
            step=total / taken,
            first_frame_draw=0.5,
            first_frame=first,
            num_frames=None if facts.kind == "image" else total,
        )
    )
    if facts.kind == "image":
        return Shown("picture", frames, 0.0)
    return Shown("video", frames, facts.fps * taken / total)


def as_jpeg(frame_HWC: Frames) -> bytes:
    """Encode one frame as JPEG."""
    data = io.BytesIO()
    Image.fromarray(frame_HWC).save(data, "JPEG", quality=_JPEG_QUALITY)
    return data.getvalue()
