"""Parsing and formatting of numbers with units, such as "500GB" or "7d"."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from reelworks.core.errors import UserError

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_SIZES = {"B": 1, "kB": 1000, **{f"{p}B": 1000**n for n, p in enumerate("KMGT", 1)}} | {
    f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)
}
_DURATIONS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def size_bytes(text: str, field: str) -> int:
    """Parse a size above 0: "500GB" is 500 · 1000³ bytes, "500GiB" 500 · 1024³."""
    return round(_read(text, field, _SIZES, f'write a size above 0 in {", ".join(_SIZES)}, such as "500GB" or "1.5TB"'))


def duration_seconds(text: str, field: str) -> float:
    """Parse a duration above 0 such as "90m", "48h" or "7d"."""
    return _read(text, field, _DURATIONS, 'write a duration above 0 in s, m, h, d or w, such as "48h" or "7d"')


def _read(text: str, field: str, units: dict[str, int], remedy: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    value = float(match[1]) * units.get(match[2], 0) if match else 0.0
    if not value:
        raise UserError("not understood", code="quantity-invalid", field=field, value=text, remedy=remedy)
    return value


def count(value: float | None) -> str:
    """Format 12345 as `12,345`, and None as a dash."""
    return "–" if value is None else f"{value:,.0f}"


def loss(value: float | None) -> str:
    """Format a loss with four decimals if it is of usual size: 0.3 as `0.3000`."""
    if value is None:
        return "–"
    return f"{value:.4f}" if 0.01 <= abs(value) < 100 else f"{value:.4g}"


def number(value: float, digits: int = 3) -> str:
    """Format a number with so many digits, and all of a larger one: 1.5, 0.123, 12,346."""
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:.{digits}g}"


def learning_rate(value: float) -> str:
    """Format 0.0001 as `1e-4`, as recipes are written and papers read; from 0.01 on without an exponent."""
    if not value or abs(value) >= 0.01:
        return f"{value:.3g}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def percent(share: float) -> str:
    """Format 0.1234 as `12.3 %`."""
    return f"{100 * share:.1f} %"


def size(num_bytes: float | None) -> str:
    """Format a number of bytes in decimal units with three digits, and None as a dash."""
    if num_bytes is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:  # which rounds to the next unit
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{number(num_bytes, 4)} TB"


def duration(seconds: float) -> str:
    """Format seconds in their two largest units; the age of what comes from a clock that is ahead is none."""
    if (seconds := max(seconds, 0.0)) < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def moment(seconds_since_1970: float | None) -> str:
    """Format a time in UTC, so that reports of two machines can be compared."""
    if seconds_since_1970 is None:
        return "–"
    return datetime.fromtimestamp(seconds_since_1970, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def verb(number: float, of_several: str) -> str:
    """Return a verb as its number wants it: `is` for 1, `are` for others."""
    alone = {"are": "is", "were": "was", "have": "has"}
    return alone.get(of_several, f"{of_several}s") if number == 1 else of_several


def plural(number: float, noun: str, of_several: str = "") -> str:
    """Format a number with its noun and perhaps a verb: `1 clip`, `2 clips are`, `2 batches`, `2 entries`."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("ry") else noun + ("es" if noun.endswith("batch") else "s")
    said = f"{count(number)} {noun}"
    return f"{said} {verb(number, of_several)}" if of_several else said
