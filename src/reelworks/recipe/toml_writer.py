"""Recipes for people to read on: TOML with the reason for a value behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import tomli_w

_COLUMN = 31  # of comments, where a line leaves it free


@dataclass(frozen=True)
class Line:
    """One key of a recipe.

    Attributes:
        table: Its header: "" on top, "[model]", or "[[dataset]]", which each begin another one.
        key: Name.
        value: A number, text, or list of them.
        why: What a reader is told of it.
        number: Tells entries of one list of tables apart.
    """

    table: str
    key: str
    value: Any
    why: str = ""
    number: int = 0

    def __str__(self) -> str:
        text = f"{self.key} = {_literal(self.value)}"
        return f"{text:<{_COLUMN - 1}} # {self.why}" if self.why else text


def write(title: str, lines: Iterable[Line]) -> str:
    """Write a recipe whose keys stand table by table."""
    parts = []
    for (table, _), keys in groupby(lines, key=lambda line: (line.table, line.number)):
        parts.append("\n".join([table] * bool(table) + [str(key) for key in keys]))
    return f"# {title}\n" + "\n\n".join(parts) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip()
