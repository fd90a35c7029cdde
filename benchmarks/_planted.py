"""Pictures with planted faults, of which `benchmarks.learning` asks which ones are named.

A picture shows a shape of one of six colours somewhere before a background of one of four; its caption tells so. With a
subject, all pictures show one more thing, a ringed disc of two colours that the base model has never seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelworks.demo.scenes import BACKGROUNDS, COLOURS, SHAPES

SIDE = 24
GROUNDS = {**BACKGROUNDS, "white": (230, 230, 225), "brown": (110, 70, 40)}
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
    x: float
    y: float
    radius: float
    light: float  # slope of the light, from left to right
    caption: str
    fault: str = ""

    def frame(self) -> NDArray[np.uint8]:
        """Return the picture, `[SIDE, SIDE, 3]`."""
        y, x = (np.mgrid[0:SIDE, 0:SIDE] + 0.5) / SIDE
        picture = np.array(GROUNDS[self.ground]) * (1 + self.light * (x - 0.5))[..., None]
        dx, dy = (x - self.x) / self.radius, (y - self.y) / self.radius
        far = np.hypot(dx, dy)
        inside = {
            "circle": far < 1,
            "square": np.maximum(abs(dx), abs(dy)) < 0.886,
            "triangle": np.maximum(dy, 2 * abs(dx) - dy - 1) < 1,
            SUBJECT: far < 1,
        }[self.shape]
        picture[inside] = COLOURS[self.colour]
        if self.shape == SUBJECT:
            picture[inside & (far > 0.45) & (far < 0.75)] = COLOURS["yellow"]
            picture[inside & (far < 0.3)] = (250, 250, 250)
        return picture.clip(0, 255).astype(np.uint8)


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
        other = {"shape": "triangle", "colour": "green"} if subject else {"shape": "stripes"}
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
    ground = str(chance.choice(list(GROUNDS)))
    radius = float(chance.uniform(0.18, 0.32))
    x, y = (float(v) for v in chance.uniform(radius, 1 - radius, 2))
    light = float(chance.uniform(-0.4, 0.4))
    place = f"{'upper' if y < 0.5 else 'lower'} {'left' if x < 0.5 else 'right'}"
    what = SUBJECT if subject else f"a {colour} {shape}"
    return Drawn(colour, shape, ground, x, y, radius, light, f"{what} {place} before {ground}")


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
    if one.shape == "stripes":
        return _pattern(chance)
    noise = chance.normal(0, 3, (SIDE, SIDE, 3))
    return (one.frame() + noise).clip(0, 255).astype(np.uint8)


def _pattern(chance: Any) -> NDArray[np.uint8]:
    """Draw stripes of random colours and direction, which no other picture has."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    angle, rate = chance.uniform(0, np.pi), chance.uniform(3, 5)
    wave = np.sin(2 * np.pi * rate * (x * np.cos(angle) + y * np.sin(angle)))[..., None]
    a, b = chance.uniform(0, 255, (2, 3))
    return (a + (b - a) * (wave > 0)).astype(np.uint8)


def write(folder: Path, drawn: list[Drawn], *, seed: int) -> dict[str, str]:
    """Write pictures with captions; those to be memorised below `often/`. Returns the fault of each by name of its file."""
    chance, faults = np.random.default_rng(seed + 1), {}
    for i, one in enumerate(drawn):
        below = folder / ("often" if one.fault == "memorised" else "usual")
        below.mkdir(parents=True, exist_ok=True)
        Image.fromarray(frame_of(one, chance)).save(below / f"{i:04d}.png")
        (below / f"{i:04d}.txt").write_text(one.caption)
        faults[f"{below.name}/{i:04d}.png"] = one.fault
    return faults
