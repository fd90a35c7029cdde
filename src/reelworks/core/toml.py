"""Parse TOML, also of strangers: whatever is wrong with it is one error."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

_DEEPEST = 32
# What TOML makes of the path "D:\new" and the like, and a path as it is written whose last backslash keeps it from ending.
_DRIVE, _OPEN = re.compile(r"[A-Za-z]:[\b\t\n\f\r]"), re.compile(r'"[A-Za-z]:[^"\n]*(?<!\\)\\"')


class TomlError(ValueError):
    """A text is no TOML, or nested deeper than any recipe; `remedy` is what to do about it."""

    def __init__(self, problem: str, text: str = "") -> None:
        super().__init__(problem)
        # What tomllib says of backslashes that begin no escape.
        is_path = problem.startswith(("Unescaped '\\'", "Invalid hex value")) or _OPEN.search(text)
        self.remedy = "write / for \\ in Windows' paths, or put single quotes around them" if is_path else "correct it"


def parse(text: str) -> dict[str, Any]:
    """Return the values of a TOML text.

    Raises:
        TomlError: It is no TOML, or nested deeper than any recipe.
    """
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise TomlError("it is nested too deeply") from None
    except ValueError as error:  # for a number of thousands of digits, too
        raise TomlError(str(error), text) from None
    level: list[Any] = [values]
    for _ in range(_DEEPEST):
        inner = list[Any]()
        for value in level:
            if isinstance(value, str) and _DRIVE.match(value):
                raise TomlError(f"Unescaped '\\' in the path {value!r}: the letter behind it is lost")
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        if not inner:
            return values
        level = inner
    raise TomlError("it is nested too deeply")


def beside(module: str, name: str) -> dict[str, Any]:
    """Return the values of a file of this program that lies beside a module, which is given by its `__file__`."""
    return parse(Path(module).with_name(name).read_text(encoding="utf-8"))
