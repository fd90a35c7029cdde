"""What filters are made of: columns they may look at, kinds of values, and parts that can be computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Truth = NDArray[np.bool_]

NUMBERS = (
    "num_frames",
    "height",
    "width",
    "fps",
    "duration_seconds",
    "size_bytes",
    "bit_depth",
    "caption_length",
)
TEXTS = ("kind", "codec", "path", "caption")
KINDS_OF_FILE = ("video", "image")
FUNCTIONS = ("startswith", "contains")
SEARCHED = ("path", "caption", "codec")


class Kind(StrEnum):
    """What a part's values are, as errors say it."""

    NUMBER = "a number"
    TEXT = "a text"
    TRUTH = "true or false"


class TextColumn(Protocol):
    """A column of texts, searched as a whole."""

    def is_in(self, texts: Sequence[str]) -> Truth:
        """True where the text is one of `texts`."""

    def startswith(self, text: str) -> Truth:
        """True where the text begins with another."""

    def contains(self, text: str) -> Truth:
        """True where another text stands somewhere in it."""


class Columns(Protocol):
    """Columns of a catalog by name."""

    def numbers(self, name: str) -> NDArray[np.float64]:
        """One of `NUMBERS`, or a score: NaN where a row has none."""

    def texts(self, name: str) -> TextColumn:
        """One of `TEXTS`."""


@dataclass(frozen=True)
class Part:
    """A checked piece of an expression.

    Attributes:
        kind: What its values are.
        value: Computes them.
        constant: Its value, if it is written out.
        column: Its name, if it is a column.
        false: Of a truth, computes where it is known not to hold: neither it nor `value` is true of a
            comparison with a number that is not there.
    """

    kind: Kind
    value: Callable[[Columns], Any]
    constant: float | str | None = None
    column: str | None = None
    false: Callable[[Columns], Any] | None = None


@dataclass(frozen=True)
class Expression:
    """A checked filter.

    Attributes:
        text: As the recipe has it.
        names: Columns that it looks at, in the order in which they first stand there.
    """

    text: str
    names: tuple[str, ...]
    _truth: Callable[[Columns], Any]

    def evaluate(self, columns: Columns, num_rows: int) -> Truth:
        """True for the rows that the filter keeps."""
        with np.errstate(all="ignore"):  # a division by 0 is an answer here
            return np.array(np.broadcast_to(self._truth(columns), num_rows), dtype=np.bool_)
