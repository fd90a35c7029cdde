"""Numbers and settings as people read and type them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def count(value: float | None) -> str:
    """Write 12345 as `12,345`; nothing is a dash."""
    return "–" if value is None else f"{value:,.0f}"


def loss(value: float | None) -> str:
    """Write a loss so that losses of usual size align: 0.3 as `0.3000`."""
    if value is None:
        return "–"
    return f"{value:.4f}" if 0.01 <= abs(value) < 100 else f"{value:.4g}"


def percent(share: float) -> str:
    """Write 0.1234 as `12.3 %`."""
    return f"{100 * share:.1f} %"


def size(num_bytes: float | None) -> str:
    """Write bytes in decimal units."""
    if num_bytes is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.4g} TB"


def duration(seconds: float) -> str:
    """Write seconds by their two largest units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def moment(seconds_since_1970: float | None) -> str:
    """Write a time in UTC, so that reports of two machines compare."""
    if seconds_since_1970 is None:
        return "–"
    return datetime.fromtimestamp(seconds_since_1970, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def plural(number: float, noun: str) -> str:
    """Write `1 clip`, `2 clips`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def change(proposal: dict[str, Any]) -> str:
    """Write what a proposal changes as it is typed.

    Batch sizes that stand in a table of Open-Sora, where `--set` is unwieldy, are told by name.
    """
    typed = " ".join(f"--set '{text}'" for text in proposal["set"])
    if any(text.startswith("bucket.") for text in proposal["set"]):
        return typed
    sizes = [f"{b['entry']}: batch size {b['to']} (now {b['from']})" for b in proposal["batch_sizes"]]
    return ", ".join(filter(None, [typed, *sizes]))
