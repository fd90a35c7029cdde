"""Sizes and durations as people write them: "500GB", "7d"."""

from __future__ import annotations

import re

from reelworks.core.errors import UserError

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_SIZES = {"B": 1, **{f"{p}B": 1000**n for n, p in enumerate(("k", "M", "G", "T"), 1)}} | {
    f"{p}iB": 1024**n for n, p in enumerate(("K", "M", "G", "T"), 1)
}
_DURATIONS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def size_bytes(text: str, field: str) -> int:
    """Read a size: "500GB" is 500 · 1000³ bytes, "500GiB" 500 · 1024³.

    Raises:
        UserError: It is not one, or nothing.
    """
    return round(_read(text, field, _SIZES, 'write a size above 0, such as "500GB" or "1.5TB"'))


def duration_seconds(text: str, field: str) -> float:
    """Read a duration: "90m", "48h", "7d".

    Raises:
        UserError: It is not one, or nothing.
    """
    return _read(
        text, field, _DURATIONS, 'write a duration above 0 in s, m, h, d or w, such as "48h" or "7d"'
    )


def _read(text: str, field: str, units: dict[str, int], remedy: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    value = float(match[1]) * units.get(match[2], 0) if match else 0.0
    if not value:
        raise UserError("not understood", field=field, value=text, remedy=remedy)
    return value


def told_bytes(size: float) -> str:
    """Write a size for people, "41.2 GB"."""
    for unit in ("GB", "MB", "kB"):
        if abs(size) >= _SIZES[unit]:
            return f"{size / _SIZES[unit]:.1f} {unit}"
    return f"{size:.0f} B"


def told_seconds(seconds: float) -> str:
    """Write a duration for people by its largest unit, "3 d"."""
    seconds = max(seconds, 0)
    unit = next((u for u in ("d", "h", "m") if seconds >= _DURATIONS[u]), "s")
    return f"{seconds / _DURATIONS[unit]:.0f} {unit}"
