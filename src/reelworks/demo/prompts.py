"""Ten fixed prompts for a model trained on the demo data.

The first five use combinations of colour, shape and direction that captions have, the last five those of
`palette.LEFT_OUT`, which no caption has.
"""

from __future__ import annotations

from dataclasses import dataclass

from reelworks.demo import palette


@dataclass(frozen=True)
class Prompt:
    """A prompt, the colour to score its clip by, and whether captions have its combination."""

    text: str
    colour: str
    seen: bool


def _prompt(colour: str, shape: str, direction: str, background: str) -> Prompt:
    subject = palette.Subject(colour, shape, direction, background)
    return Prompt(subject.caption, colour, (colour, shape, direction) not in palette.LEFT_OUT)


PROMPTS: tuple[Prompt, ...] = (
    _prompt("cyan", "circle", "left", "dark"),
    _prompt("cyan", "square", "up", "grey"),
    _prompt("red", "circle", "right", "dark"),
    _prompt("green", "triangle", "down", "grey"),
    _prompt("blue", "circle", "down", "dark"),
    _prompt("red", "triangle", "left", "grey"),
    _prompt("green", "circle", "up", "dark"),
    _prompt("blue", "square", "right", "grey"),
    _prompt("yellow", "triangle", "down", "dark"),
    _prompt("magenta", "square", "left", "grey"),
)
