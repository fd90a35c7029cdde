"""Parse TOML of strangers: whatever is wrong with it is one error."""

from __future__ import annotations

import tomllib
from typing import Any

Invalid = tomllib.TOMLDecodeError
_DEEPEST = 32


def parse(text: str) -> dict[str, Any]:
    """Return the values of a TOML text.

    Raises:
        Invalid: It is no TOML, or nested deeper than any recipe.
    """
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise Invalid("it is nested too deeply") from None
    except Invalid:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise Invalid(str(error)) from None
    level: list[Any] = [values]
    for _ in range(_DEEPEST):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return values
    raise Invalid("it is nested too deeply")


def _inside(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
