"""Write recipes for people: TOML with the reason for each value in a comment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        text = f"{key_text(self.key)} = {literal(self.value)}"
        return f"{text:<{_COLUMN - 1}} # {self.why}" if self.why else text


def write(title: str, lines: Iterable[Line]) -> str:
    """Return a recipe as TOML; lines of one table must be adjacent."""
    return f"# {title}\n{tables(lines)}\n"


def tables(lines: Iterable[Line]) -> str:
    """Return the tables of some lines as TOML."""
    grouped = groupby(lines, key=lambda line: (line.table, line.number))
    return "\n\n".join("\n".join([table] * bool(table) + [str(key) for key in keys]) for (table, _), keys in grouped)


def lines_of(values: Mapping[str, Any], known: Sequence[Line]) -> list[Line]:
    """Return the lines of plain values, in the order of known ones and with their reasons; others were given with `--set`."""
    found: dict[tuple[str, int, str], Any] = {}
    for key, value in values.items():
        tables = value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]
        for number, table in enumerate(tables):
            if isinstance(table, dict):
                header = f"[[{key}]]" if tables is value else f"[{key}]"
                found |= {(header, number, inner): one for inner, one in table.items()}
            else:
                found["", 0, key] = value
    reasons = {(line.table, line.number, line.key): line for line in known}
    order = list(dict.fromkeys([(line.table, line.number) for line in known] + [place[:2] for place in found]))
    places = [place for place in reasons if place in found] + [place for place in found if place not in reasons]
    places.sort(key=lambda place: order.index(place[:2]))
    lines = []
    for place in places:
        line = reasons.get(place)
        same = line is not None and line.value == found[place]
        lines.append(
            Line(
                place[0],
                place[2],
                found[place],
                line.why if line is not None and same else "as given with --set",
                place[1],
            )
        )
    return lines


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
