"""Results as frozen dataclasses, and the one function that makes JSON of them."""

from __future__ import annotations

import math
import sys
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]
# Metadata of a field, a dataclass too, whose keys in JSON stand among those of the dataclass that has it; None has none.
INLINED = {"inlined": True}
# Metadata of a field that has no key in JSON while it is None.
OPTIONAL = {"optional": True}


def as_json(value: Any) -> Any:
    """Return a value made of dicts, lists, strings and numbers only.

    The keys of a dataclass are its fields, or the attributes that its `JSON_KEYS` names; an underscore at the end, which
    distinguishes `from_` from a word of Python, is left out. A number that is not finite, which JSON cannot hold, is None.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if is_dataclass(value):
        return _keys_of(value)
    # Whoever has a scalar of numpy has imported it; commands import this module for their help.
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic):
        return as_json(value.item())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"not JSON: {type(value).__name__}")


def _keys_of(value: Any) -> dict[str, Any]:
    declared: dict[str, Field[Any]] = {each.name: each for each in fields(value)}
    keys: dict[str, Any] = {}
    for name in getattr(value, "JSON_KEYS", declared):
        item = as_json(getattr(value, name))
        metadata = declared[name].metadata if name in declared else {}
        if "inlined" in metadata:
            keys |= item or {}
        elif item is not None or "optional" not in metadata:
            keys[name.rstrip("_")] = item
    return keys
