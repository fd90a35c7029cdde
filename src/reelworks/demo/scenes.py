"""Scenes of all files, as a pure function of the seed.

Colours are exactly balanced, shapes, directions and backgrounds nearly so, and every combination that
captions may have occurs at least once among the videos.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from reelworks.core import hash_rng, toml
from reelworks.core.arrays import Frames
from reelworks.demo import formats

_T = TypeVar("_T")
_MOST_REPEATS = 5  # of one combination
_MILLISECOND = Fraction(1, 1000)
RGB = tuple[int, int, int]
_TABLES = toml.beside(__file__, "scenes.toml")

COLOURS: dict[str, RGB] = {name: (red, green, blue) for name, (red, green, blue) in _TABLES["colours"].items()}
BACKGROUNDS: dict[str, RGB] = {"dark": (20, 20, 24), "grey": (110, 110, 110)}
SHAPES = ("circle", "square", "triangle")

# Unit steps (x, y), with y pointing down like the rows of a picture.
DIRECTIONS: dict[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}

Combination = tuple[str, str, str]

# Training sees each word but never these combinations: a model that draws them has learned words, not captions.
LEFT_OUT: frozenset[Combination] = frozenset(tuple(words.split()) for words in _TABLES["left_out"])


@dataclass(frozen=True)
class Subject:
    """Subject of a clip; `direction` is None in a picture."""

    colour: str
    shape: str
    direction: str | None
    background: str

    @property
    def caption(self) -> str:
        """Caption in one sentence, such as "a red circle moves left before a dark background"."""
        motion = "" if self.direction is None else f" moves {self.direction}"
        return f"a {self.colour} {self.shape}{motion} before a {self.background} background"

    @property
    def seen(self) -> bool:
        """Whether captions have its combination."""
        return (self.colour, self.shape, self.direction) not in LEFT_OUT

    @property
    def slug(self) -> str:
        """Part of a file name, such as "red-circle-left"."""
        return "-".join(word for word in (self.colour, self.shape, self.direction) if word)


@dataclass(frozen=True)
class Scene:
    """Content of one clip as displayed, after any rotation in the file's metadata."""

    subject: Subject
    width: int
    height: int
    radius_px: float  # half the extent of the shape
    offset_px: float  # distance of its path from the centre, across the direction of motion
    time_base: Fraction = Fraction(1)  # seconds per unit of `pts`
    pts: tuple[int, ...] = (0,)  # presentation time of each frame; a picture has one frame at 0
    fps: Fraction = Fraction(1)  # nominal frame rate


class Video(NamedTuple):
    """A video file to write."""

    name: str
    scene: Scene
    format: formats.VideoFormat


class Picture(NamedTuple):
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

    `size` is (width, height) in pixels. With `variable`, intervals between frames are drawn from 0.5 to 1.7 times the
    nominal one. `key`, the seed and the name of the file, determines all draws.
    """
    width, height = size
    u = hash_rng.uniform(hash_rng.hash64(*key, "geometry", np.arange(2)))
    # Large enough that a triangle's tip survives colours at half resolution, as most codecs store them.
    radius_px = min(size) * (0.29 + 0.01 * float(u[0]))
    offset_px = min(size) * 0.01 * (float(u[1]) - 0.5)
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
        key, length = (seed, f"video {number}"), num_frames or formats.usual_length(fps)
        drawn = scene(subject, size, num_frames=length, fps=fps, variable=fmt.variable, key=key)
        files.append(Video(f"video-{number:03d}-{subject.slug}{fmt.note}{fmt.suffix}", drawn, fmt))
    return files


def pictures(seed: int) -> list[Picture]:
    """Return the good pictures: each combination of colour, shape and background once."""
    every = [Subject(c, s, None, b) for c in COLOURS for s in SHAPES for b in BACKGROUNDS]
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
    """Return one subject for each format: all combinations, then the rarest again, each time on the other background."""
    first = combinations()
    subjects = [_on_ground(words, 0) for words in first]
    seen = Counter(first)
    left = _MOST_REPEATS * _shuffled(first, seed, "repeats")
    counts = Counter(word for combination in first for word in combination)
    while len(subjects) < len(formats.VIDEO_FORMATS):
        # The rarest colour first, so that all colours end with the same count.
        rarest = min(left, key=lambda words: (counts[words[0]], seen[words], counts[words[1]] + counts[words[2]]))
        left.remove(rarest)
        subjects.append(_on_ground(rarest, seen[rarest]))
        seen[rarest] += 1
        counts.update(rarest)
    return subjects


def _on_ground(words: Combination, shift: int) -> Subject:
    """Give neighbouring combinations different backgrounds, so that no word goes with one of them."""
    colour, shape, direction = words
    grounds = tuple(BACKGROUNDS)
    place = tuple(COLOURS).index(colour) + SHAPES.index(shape) + tuple(DIRECTIONS).index(direction)
    return Subject(colour, shape, direction, grounds[(place + shift) % len(grounds)])


def combinations() -> list[Combination]:
    """Return all (colour, shape, direction) that captions have, in palette order."""
    every = [(c, s, d) for c in COLOURS for s in SHAPES for d in DIRECTIONS]
    return [combination for combination in every if combination not in LEFT_OUT]


# Half the side of a square with about the area of a circle of radius 1.
_SQUARE = 0.886
# Free pixels between the shape at the end of its path and the edge of the frame, in radii.
_MARGIN = 0.1
# Maximum of half a path as a share of the short side, so that a crop to a squarer shape keeps most of it.
_LONGEST = 0.6


def frames(scene: Scene) -> Frames:
    """Draw a scene as displayed: frames_THWC, uint8 RGB."""
    x_T, y_T = path(scene)
    dx_TW = np.arange(0.5, scene.width, dtype=np.float32) - x_T[:, None]
    dy_TH = np.arange(0.5, scene.height, dtype=np.float32) - y_T[:, None]
    distance_THW = _distance(scene, dx_TW[:, None, :], dy_TH[:, :, None])
    cover_THW = (np.clip(0.5 - distance_THW, 0, 1) * 255 + 0.5).astype(np.uint8)
    ground_C = np.array(BACKGROUNDS[scene.subject.background])
    colour_C = np.array(COLOURS[scene.subject.colour])
    blend_VC = np.rint(ground_C + np.linspace(0, 1, 256)[:, None] * (colour_C - ground_C)).astype(np.uint8)
    frames_THWC: Frames = blend_VC[cover_THW]
    return frames_THWC


def path(scene: Scene) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the shape's centre in each frame, in pixels: (x_T, y_T). It moves evenly in time, not per frame."""
    centre = np.array([scene.width / 2, scene.height / 2])
    if scene.subject.direction is None:
        step = np.array([0, 1])
        along_T = np.zeros(1)
    else:
        step = np.array(DIRECTIONS[scene.subject.direction])
        side = scene.width if step[0] else scene.height
        reach = min(side / 2 - (1 + _MARGIN) * scene.radius_px, _LONGEST * min(scene.width, scene.height))
        along_T = np.interp(scene.pts, (0, scene.pts[-1]), (-reach, reach))
    across = scene.offset_px * np.abs(step[::-1])
    xy_T2 = (centre + across + along_T[:, None] * step).astype(np.float32)
    return xy_T2[:, 0], xy_T2[:, 1]


def _distance(scene: Scene, dx: NDArray[Any], dy: NDArray[Any]) -> NDArray[Any]:
    """Return the signed distance in pixels to the shape's outline, negative inside; exact except at outer corners."""
    r = scene.radius_px
    if scene.subject.shape == "circle":
        return np.asarray(np.sqrt(dx**2 + dy**2) - r)
    if scene.subject.shape == "square":
        return np.asarray(np.maximum(np.abs(dx), np.abs(dy)) - _SQUARE * r)
    # A triangle with its tip up, as high and as wide as the circle.
    return np.asarray(np.maximum(dy - r, (2 * np.abs(dx) - dy - r) / math.sqrt(5)))


# To generate after the training.
PROMPTS = tuple(Subject(*words.split()) for words in _TABLES["prompts"])
