"""Parse TOML of strangers: whatever is wrong with it is one error."""

from __future__ import annotations

import tomllib
from typing import Any

_DEEPEST = 32


class TomlError(ValueError):
    """A text is no TOML, or nested deeper than any recipe; `remedy` is what to do about it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        slashes = "write / for \\ in paths of Windows, or put single quotes around them"
        # What tomllib says of backslashes that begin no escape.
        self.remedy = slashes if problem.startswith(("Unescaped '\\'", "Invalid hex value")) else "correct it"


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
        raise TomlError(str(error)) from None
    level: list[Any] = [values]
    for _ in range(_DEEPEST):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return values
    raise TomlError("it is nested too deeply")


def _inside(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
