"""Know metrics by their names: ours, those that are registered, and classes that an entry names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reelworks.core import named_code
from reelworks.core.errors import UserError, nearest
from reelworks.evaluation import features, likeness, pixels

_METRICS: dict[str, type[Any]] = {}
_METHODS = ("value", "features")


def register(metric: type[Any]) -> type[Any]:
    """Make a metric's class known by its name, which must be free; returns it, so it can be used as a decorator."""
    _require_complete(metric, metric.__name__)
    if _METRICS.get(metric.name, metric) is not metric:
        raise UserError(
            f"two metrics have the name {metric.name!r}",
            code="duplicate-metric-name",
            field="metric",
            value=metric.__name__,
            remedy="choose another name",
        )
    _METRICS[metric.name] = metric
    return metric


def names() -> list[str]:
    """Return the names of all registered metrics."""
    return list(_METRICS)


def named(name: str, field: str) -> type[Any]:
    """Return the class of a metric by its name, or by an entry such as `my_metrics:Sharpness` or `sharpness.py:Sharpness`.

    Raises:
        UserError: The name is unknown, or the entry does not lead to a metric.
    """
    if name in _METRICS:
        return _METRICS[name]
    if ":" not in name:
        raise UserError(
            "there is no such metric",
            code="unknown-metric",
            field=field,
            value=name,
            remedy=f"{nearest(name, _METRICS)}; or name a class of yours, as in my_metrics.py:Sharpness",
        )
    try:
        metric = named_code.load(name)
    except Exception as error:  # the user's code may raise anything
        raise UserError(
            f"it cannot be imported ({type(error).__name__}: {error})",
            code="metric-not-importable",
            field=field,
            value=name,
            remedy="name a file or an installed module, a colon, and a class in it",
        ) from error
    _require_complete(metric, name)
    return register(metric)


def all_named(given: Sequence[str], field: str) -> list[type[Any]]:
    """Return the classes of several metrics, each once."""
    return list(dict.fromkeys(named(name, field) for name in given))


def _require_complete(metric: Any, name: str) -> None:
    attributes = ("name", "higher_is_better", "requires_reference")
    missing = [attribute for attribute in attributes if not hasattr(metric, attribute)]
    if not isinstance(metric, type) or not any(hasattr(metric, method) for method in _METHODS):
        missing.append("a method `value`, or `features` and `distance`")
    if missing:
        raise UserError(
            f"it lacks {', '.join(missing)}",
            code="metric-incomplete",
            field="metric",
            value=name,
            remedy="see docs/how-to/evaluate.md for what a metric's class has",
        )


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
