"""Pictures with planted faults, of which `benchmarks.learning` asks which ones are named.

A picture shows a shape before a background. Size, colour, shape and place of the one, and pattern and colour of the other
vary, and its caption tells of all of them. With a subject, all pictures show one more thing, a ringed disc of two colours
that the base model has never seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelworks.demo.scenes import COLOURS, SHAPES

SIDE = 72  # of a file, three times that of training
GROUNDS = {
    "black": (25, 25, 30),
    "grey": (125, 125, 120),
    "brown": (120, 75, 40),
    "navy": (30, 45, 110),
    "white": (225, 225, 215),
}
PATTERNS = ("cloudy", "striped", "checked", "dotted")
SIZES = {"small": (0.14, 0.2), "large": (0.26, 0.34)}  # radii
MIDDLE = 0.08  # from the middle on, of which no caption tells a side
SUBJECT = "rwmug"
# Faults by kind, of 400 clips and of 40 pictures of a subject.
CLIPS = {"wrong": 8, "swapped": 8, "other": 4, "black": 4, "duplicate": 10, "memorised": 1}
PICTURES = {"wrong": 2, "swapped": 2, "other": 1, "black": 1, "duplicate": 10, "memorised": 1}
MEMORISED = 60  # times as often as others


@dataclass(frozen=True)
class Drawn:
    """Words and measures of a picture; `fault` is empty for a good one."""

    colour: str
    shape: str
    ground: str
    pattern: str
    x: float
    y: float
    radius: float
    light: float  # slope of the light, from left to right
    seed: int  # of pattern and hues
    caption: str
    fault: str = ""

    def frame(self) -> NDArray[np.uint8]:
        """Return the picture, `[SIDE, SIDE, 3]`."""
        chance = np.random.default_rng(self.seed)
        y, x = (np.mgrid[0:SIDE, 0:SIDE] + 0.5) / SIDE
        ground, colour = (
            np.array(hue) + chance.normal(0, 14, 3) for hue in (GROUNDS[self.ground], COLOURS[self.colour])
        )
        strength = chance.uniform(60, 110) * np.where(ground.mean() > 128, -1, 1)
        picture = ground + strength * _pattern(self.pattern, x, y, chance)[..., None]
        dx, dy = (x - self.x) / self.radius, (y - self.y) / self.radius
        far = np.hypot(dx, dy)
        inside = {
            "circle": far < 1,
            "square": np.maximum(abs(dx), abs(dy)) < 0.886,
            "triangle": np.maximum(dy, 2 * abs(dx) - dy - 1) < 1,
            SUBJECT: far < 1,
        }[self.shape]
        picture[inside] = colour
        if self.shape == SUBJECT:
            picture[inside & (far > 0.45) & (far < 0.75)] = COLOURS["yellow"]
            picture[inside & (far < 0.3)] = 250
        return (picture * (1 + self.light * (x - 0.5))[..., None]).clip(0, 255).astype(np.uint8)


def _pattern(name: str, x: Any, y: Any, chance: Any) -> Any:
    """Return values from 0 to 1, `[SIDE, SIDE]`, at a random place, angle and width."""
    angle, rate, (a, b) = chance.uniform(0, np.pi), chance.uniform(2.5, 5), chance.uniform(0, 1, 2)
    u = rate * (x * np.cos(angle) + y * np.sin(angle)) + a
    v = rate * (y * np.cos(angle) - x * np.sin(angle)) + b
    if name == "striped":
        return (u % 1 < 0.5).astype(np.float64)
    if name == "checked":
        return ((u % 1 < 0.5) ^ (v % 1 < 0.5)).astype(np.float64)
    if name == "dotted":
        return (np.hypot(u % 1 - 0.5, v % 1 - 0.5) < 0.3).astype(np.float64)
    cells = Image.fromarray(chance.uniform(0, 1, (6, 6)).astype(np.float32))
    return np.asarray(cells.resize((SIDE, SIDE), Image.Resampling.BICUBIC)).astype(np.float64)


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
        other = {"shape": "triangle", "colour": "green"} if subject else {"shape": "rings"}
        drawn[i] = replace(drawn[i], **other)
    for i in by_kind.get("duplicate", [])[1:]:
        first = drawn[by_kind["duplicate"][0]]
        drawn[i] = replace(first, light=first.light + float(chance.uniform(-0.05, 0.05)))
    return [
        replace(one, fault=next((k for k, where in by_kind.items() if i in where), "")) for i, one in enumerate(drawn)
    ]


def _one(chance: Any, subject: bool) -> Drawn:
    colour = "magenta" if subject else str(chance.choice(list(COLOURS)))
    shape = SUBJECT if subject else str(chance.choice(SHAPES))
    ground, pattern, size = (str(chance.choice(list(names))) for names in (GROUNDS, PATTERNS, SIZES))
    radius = float(chance.uniform(*SIZES[size]))
    x, y = (_place(chance, radius) for _ in "xy")
    light = float(chance.uniform(-0.4, 0.4))
    place = f"{'upper' if y < 0.5 else 'lower'} {'left' if x < 0.5 else 'right'}"
    what = SUBJECT if subject else f"{colour} {shape}"
    caption = f"a {size} {what} {place} before {pattern} {ground}"
    return Drawn(colour, shape, ground, pattern, x, y, radius, light, int(chance.integers(1 << 32)), caption)


def _place(chance: Any, radius: float) -> float:
    """Draw where a shape lies on one axis: within the picture, and plainly on one side of its middle, as its caption says."""
    while abs((place := float(chance.uniform(radius, 1 - radius))) - 0.5) < MIDDLE:
        pass
    return place


def _unlike(chance: Any, other: Drawn, subject: bool) -> Drawn:
    """Draw a picture of which no word is that of another one."""
    while True:
        one = _one(chance, subject)
        words = {*other.caption.split()} & {*one.caption.split()}
        if not words - {"a", "before", SUBJECT}:
            return one


def frame_of(one: Drawn, chance: Any) -> NDArray[np.uint8]:
    """Return what a picture shows, with the noise of a camera."""
    if one.fault == "black":
        return np.zeros((SIDE, SIDE, 3), np.uint8)
    picture = _rings(chance) if one.shape == "rings" else one.frame()
    return (picture + chance.normal(0, 3, picture.shape)).clip(0, 255).astype(np.uint8)


def _rings(chance: Any) -> NDArray[np.float64]:
    """Draw rings of two random colours around a random centre, as in no other picture."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    centre, rate, (a, b) = chance.uniform(0.2, 0.8, 2), chance.uniform(3, 5), chance.uniform(0, 255, (2, 3))
    wave = np.sin(2 * np.pi * rate * np.hypot(x - centre[0], y - centre[1]))[..., None]
    return np.where(wave > 0, a, b)


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
