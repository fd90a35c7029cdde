"""The shape that a run has learnt most of: what to generate where nobody says a size."""

from __future__ import annotations

import json
from typing import Any

from reelworks.core.shape import Shape
from reelworks.run.folder import RunFolder

_UNKNOWN = Shape(17, 64, 96)  # of a run whose plan was removed


def shape(run: RunFolder, *, picture: bool) -> Shape:
    """Shape of the bucket with the most tokens in a run's epoch.

    Args:
        run: The run's folder.
        picture: Prefer buckets of one frame to those of several; without any, their size is taken.
    """
    buckets = [bucket for bucket in _planned(run) if bucket["clips"]]
    wanted = [bucket for bucket in buckets if (bucket["num_frames"] == 1) == picture]
    most = max(wanted or buckets, key=_tokens, default=None)
    found = _UNKNOWN if most is None else Shape(most["num_frames"], most["height"], most["width"])
    return Shape(1, found.height, found.width) if picture else found


def _planned(run: RunFolder) -> list[dict[str, Any]]:
    try:
        text = (run.plan_folder / "summary.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    buckets: list[dict[str, Any]] = json.loads(text)["buckets"]
    return buckets


def _tokens(bucket: dict[str, Any]) -> int:
    return int(bucket["clips"] * bucket["tokens_per_clip"])
