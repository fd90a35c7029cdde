"""Scenes of all files, as a pure function of the seed.

Colours are exactly balanced, shapes, directions and backgrounds nearly so, and every combination that
captions may have occurs at least once among the videos.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np

from reelworks.core import hash_rng
from reelworks.demo import formats, palette
from reelworks.demo.palette import Subject

_T = TypeVar("_T")
_MILLISECOND = Fraction(1, 1000)


@dataclass(frozen=True)
class Scene:
    """Content of one clip as displayed, after any rotation in the file's metadata.

    Attributes:
        subject: Colour, shape, direction and background.
        width: Width in pixels.
        height: Height in pixels.
        radius_px: Half the extent of the shape.
        offset_px: Distance of its path from the centre, across the direction of motion.
        time_base: Seconds per unit of `pts`.
        pts: Presentation time of each frame; a picture has one frame at 0.
        fps: Nominal frame rate.
    """

    subject: Subject
    width: int
    height: int
    radius_px: float
    offset_px: float
    time_base: Fraction = Fraction(1)
    pts: tuple[int, ...] = (0,)
    fps: Fraction = Fraction(1)

    @property
    def num_frames(self) -> int:
        """Number of frames, 1 for a picture."""
        return len(self.pts)


@dataclass(frozen=True)
class Video:
    """A video file to write."""

    name: str
    scene: Scene
    format: formats.VideoFormat


@dataclass(frozen=True)
class Picture:
    """A picture file to write."""

    name: str
    scene: Scene
    format: formats.PictureFormat


def scene(
    subject: Subject,
    size: formats.Size,
    *,
    num_frames: int = 1,
    fps: Fraction = Fraction(1),
    variable: bool = False,
    key: tuple[int, str],
) -> Scene:
    """Return a scene with random size of the shape, position of its path and times of its frames.

    Args:
        subject: Colour, shape, direction and background.
        size: (width, height) in pixels.
        num_frames: Number of frames, 1 for a picture.
        fps: Nominal frame rate.
        variable: Draw intervals between frames of 0.5 to 1.7 times the nominal one.
        key: Seed and name of the file, which determine all draws.
    """
    width, height = size
    u = hash_rng.uniform(hash_rng.hash64(*key, "geometry", np.arange(2)))
    radius_px = min(size) * (0.22 + 0.07 * float(u[0]))
    offset_px = min(size) * 0.16 * (float(u[1]) - 0.5)
    if not variable:
        pts, time_base = tuple(range(num_frames)), 1 / fps
    else:
        stretch = 0.5 + 1.2 * hash_rng.uniform(hash_rng.hash64(*key, "interval", np.arange(num_frames - 1)))
        intervals = np.maximum(1, np.rint(1000 / float(fps) * stretch)).astype(np.int64)
        pts, time_base = (0, *np.cumsum(intervals).tolist()), _MILLISECOND
    return Scene(subject, width, height, radius_px, offset_px, time_base, pts, fps)


def videos(seed: int) -> list[Video]:
    """Return the good videos, in the order of their numbers."""
    subjects = _shuffled(_video_subjects(seed), seed, "subjects")
    inner = _shuffled(range(formats.NUM_SMALL), seed, "lengths")
    cuts = _shuffled(formats.video_cuts(inner), seed, "cuts")
    rates = _shuffled(formats.FRAME_RATES, seed, "rates")
    files = []
    rows = zip(subjects, cuts, rates, formats.VIDEO_FORMATS, strict=True)
    for number, (subject, (size, num_frames), fps, fmt) in enumerate(rows):
        drawn = scene(
            subject,
            size,
            num_frames=num_frames,
            fps=fps,
            variable=fmt.variable,
            key=(seed, f"video {number}"),
        )
        files.append(Video(f"video-{number:03d}-{subject.slug}{fmt.note}{fmt.suffix}", drawn, fmt))
    return files


def pictures(seed: int) -> list[Picture]:
    """Return the good pictures: each combination of colour, shape and background once."""
    every = [
        Subject(c, s, None, b) for c in palette.COLOURS for s in palette.SHAPES for b in palette.BACKGROUNDS
    ]
    subjects = _shuffled(every, seed, "picture subjects")
    sizes = _shuffled(formats.PICTURE_SIZES, seed, "picture sizes")
    files = []
    for number, (subject, size, fmt) in enumerate(zip(subjects, sizes, formats.PICTURE_FORMATS, strict=True)):
        drawn = scene(subject, size, key=(seed, f"picture {number}"))
        files.append(Picture(f"picture-{number:03d}-{subject.slug}{fmt.note}{fmt.suffix}", drawn, fmt))
    return files


def _shuffled(items: Sequence[_T], *key: int | str) -> list[_T]:
    order = np.argsort(hash_rng.hash64(*key, np.arange(len(items))), kind="stable")
    return [items[i] for i in order]


def _video_subjects(seed: int) -> list[Subject]:
    """Return one subject for each format: all combinations, then the rarest again on the other background."""
    first = palette.combinations()
    repeats: list[palette.Combination] = []
    left = _shuffled(first, seed, "repeats")
    counts = Counter(word for combination in first for word in combination)
    while len(first) + len(repeats) < len(formats.VIDEO_FORMATS):
        # The rarest colour first, so that all colours end with the same count.
        rarest = min(left, key=lambda words: (counts[words[0]], counts[words[1]] + counts[words[2]]))
        left.remove(rarest)
        repeats.append(rarest)
        counts.update(rarest)
    return [_on_ground(words, 0) for words in first] + [_on_ground(words, 1) for words in repeats]


def _on_ground(words: palette.Combination, shift: int) -> Subject:
    """Give neighbouring combinations different backgrounds, so that no word goes with one of them."""
    colour, shape, direction = words
    grounds = tuple(palette.BACKGROUNDS)
    place = (
        tuple(palette.COLOURS).index(colour)
        + palette.SHAPES.index(shape)
        + tuple(palette.DIRECTIONS).index(direction)
    )
    return Subject(colour, shape, direction, grounds[(place + shift) % len(grounds)])
