"""Write recipes for people: TOML with the reason for each value in a comment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import tomli_w

_COLUMN = 31  # where comments begin, unless the line is longer


@dataclass(frozen=True)
class Line:
    """One key of a recipe."""

    table: str  # header of its table, such as "[model]" or "[[dataset]]"; "" for keys at the top
    key: str
    value: Any  # a number, a text, or a list of them
    why: str = ""  # comment, for the reader
    number: int = 0  # index of the table among those with the same header

    def __str__(self) -> str:
        text = f"{self.key} = {literal(self.value)}"
        return f"{text:<{_COLUMN - 1}} # {self.why}" if self.why else text


def write(title: str, lines: Iterable[Line]) -> str:
    """Return a recipe as TOML; lines of one table must be adjacent."""
    parts = []
    for (table, _), keys in groupby(lines, key=lambda line: (line.table, line.number)):
        parts.append("\n".join([table] * bool(table) + [str(key) for key in keys]))
    return f"# {title}\n" + "\n\n".join(parts) + "\n"


def literal(value: Any) -> str:
    """Return a value as it is written on one line."""
    if isinstance(value, dict):
        inside = ", ".join(f"{key_text(name)} = {literal(one)}" for name, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip()


def key_text(name: str) -> str:
    """Return a key as it is written: in quotes if it has other characters than letters, digits, "-" and "_"."""
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")
