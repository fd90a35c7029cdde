"""Know metrics by their names: ours, those that are registered, and classes that an entry names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reelworks.core.named_code import NamedClasses
from reelworks.inference.evaluate import features, likeness, pixels


def _missing(metric: type[Any]) -> list[str]:
    missing = [name for name in ("name", "higher_is_better", "requires_reference") if not hasattr(metric, name)]
    if not hasattr(metric, "value") and not hasattr(metric, "features"):
        missing.append("a method `value`, or `features` and `distance`")
    return missing


_METRICS = NamedClasses("metric", "my_metrics.py:Sharpness", _missing, "docs/how-to/evaluate.md")


def register(metric: type[Any]) -> type[Any]:
    """Make a metric's class known by its name, which must be free; returns it, so it can be used as a decorator."""
    return _METRICS.register(metric)


def names() -> list[str]:
    """Return the names of all registered metrics."""
    return list(_METRICS.by_name)


def named(name: str, field: str) -> type[Any]:
    """Return the class of a metric by its name, or by an entry such as `my_metrics:Sharpness` or `sharpness.py:Sharpness`.

    Raises:
        UserError: The name is unknown, or the entry does not lead to a metric.
    """
    return register(_METRICS.load(name, field))


def all_named(given: Sequence[str], field: str) -> list[type[Any]]:
    """Return the classes of several metrics, each once."""
    return list(dict.fromkeys(named(name, field) for name in given))


for _metric in (
    pixels.Psnr,
    pixels.Ssim,
    pixels.Motion,
    pixels.Flicker,
    features.ClipScore,
    likeness.LikenessDinov2,
    likeness.LikenessClip,
    likeness.LikenessPixels,
    likeness.ClosenessDinov2,
    likeness.ClosenessClip,
    likeness.ClosenessPixels,
    features.FidInception,
    features.KidInception,
    features.FidClip,
    features.KidClip,
    features.FidDinov2,
    features.KidDinov2,
    features.FvdVideoMae,
):
    register(_metric)
