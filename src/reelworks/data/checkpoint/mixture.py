"""Weighted sums of metrics, by which the best checkpoint may be chosen: `0.7 * eval/likeness-dinov2 - 0.3 * eval/loss`.

The value is the plain sum of the raw values times their numbers: nothing is normalised, so the numbers carry the scales. A
checkpoint that lacks one of the metrics has no value. A text without `*` is the name of one metric.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from reelworks.core.errors import UserError

# A name may have hyphens and slashes, so that a minus between two terms has a space before it.
_TERM = re.compile(
    r"\s*(?P<sign>[+-])?\s*(?P<weight>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*\*\s*(?P<name>[A-Za-z_][^\s*+]*)"
)


@lru_cache(maxsize=64)
def terms(text: str) -> Mapping[str, float]:
    """Return the weight of each metric; a name alone has weight 1.

    Raises:
        UserError: It is no sum of numbers times names, or a number is too large or all are 0.
    """
    if "*" not in text:
        return {text: 1.0}
    found: dict[str, float] = {}
    end = 0
    while end < len(text.rstrip()):
        term = _TERM.match(text, end)
        if term is None or (found and term["sign"] is None):
            raise _refusal(text, f"{text[end:].strip()!r} is no number times a name")
        weight = float(term["weight"]) * (-1 if term["sign"] == "-" else 1)
        found[term["name"]] = found.get(term["name"], 0.0) + weight
        end = term.end()
    if not all(map(math.isfinite, found.values())) or not any(found.values()):
        raise _refusal(text, "its numbers are too large, or all of them are 0")
    return found


def value(metrics: Mapping[str, float], text: str) -> float | None:
    """Return the value of a metric or mixture; None if one of its metrics is missing or not finite."""
    total = 0.0
    for name, weight in terms(text).items():
        total += weight * metrics.get(name, math.nan)
    return total if math.isfinite(total) else None


def parts(metrics: Mapping[str, float], text: str) -> str:
    """Return the values of a mixture's metrics as readable text; empty for a single metric."""
    return "" if "*" not in text else ", ".join(f"{name} {metrics.get(name, math.nan):.6g}" for name in terms(text))


def missing(metrics: Mapping[str, float], text: str) -> list[str]:
    """Return the metrics of a mixture, or the one metric, that have no finite value."""
    return [name for name in terms(text) if not math.isfinite(metrics.get(name, math.nan))]


def names(texts: Iterable[str]) -> list[str]:
    """Return all metrics that metrics or mixtures name, each once."""
    return list(dict.fromkeys(name for text in texts for name in terms(text)))


def _refusal(text: str, why: str) -> UserError:
    return UserError(
        f"this is no mixture of metrics: {why}",
        code="mixture-invalid",
        field="checkpoints.keep_best.metric",
        value=text,
        remedy='write numbers and names, as in "0.7 * eval/likeness-dinov2 - 0.3 * eval/closeness-dinov2"',
    )
