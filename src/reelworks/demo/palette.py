"""Words of the demo captions, their colours, and the combinations that no caption has.

Order matters in `COLOURS`: scoring rotates expected colours along it.
"""

from __future__ import annotations

from dataclasses import dataclass

RGB = tuple[int, int, int]

COLOURS: dict[str, RGB] = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 80, 230),
    "yellow": (235, 215, 50),
    "cyan": (50, 205, 215),
    "magenta": (215, 55, 200),
}
BACKGROUNDS: dict[str, RGB] = {"dark": (20, 20, 24), "grey": (110, 110, 110)}
SHAPES = ("circle", "square", "triangle")

# Unit steps (x, y), with y pointing down like the rows of a picture.
DIRECTIONS: dict[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}

Combination = tuple[str, str, str]

# Training sees each word but never these combinations: a model that draws them has learned words, not captions.
LEFT_OUT: frozenset[Combination] = frozenset(
    {
        ("red", "triangle", "left"),
        ("green", "circle", "up"),
        ("blue", "square", "right"),
        ("yellow", "triangle", "down"),
        ("magenta", "square", "left"),
    }
)


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
    def slug(self) -> str:
        """Part of a file name, such as "red-circle-left"."""
        return "-".join(word for word in (self.colour, self.shape, self.direction) if word)


def combinations() -> list[Combination]:
    """Return all (colour, shape, direction) that captions have, in palette order."""
    every = [(c, s, d) for c in COLOURS for s in SHAPES for d in DIRECTIONS]
    return [combination for combination in every if combination not in LEFT_OUT]
