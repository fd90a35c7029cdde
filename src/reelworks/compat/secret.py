"""Settings that nobody else may see: they are neither printed nor written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"
_SECRET = re.compile(r"(api_?key|token|passw(or)?d|secret)s?$", re.IGNORECASE)


def hidden(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the values of keys, tokens and passwords replaced, wherever they are nested."""
    return {
        key: HIDDEN if value and isinstance(value, str) and any(map(_SECRET.search, key.split("."))) else value
        for key, value in values.items()
    }
