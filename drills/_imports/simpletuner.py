"""Configs that SimpleTuner publishes in simpletuner/examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from drills._imports import Example


def examples(mirror: Path) -> Iterator[Example]:
    """Yield the configs of a checkout of bghira/SimpleTuner; each names its data backends."""
    folder = mirror / "simpletuner" / "examples"
    for path in sorted([*folder.glob("*/config.json"), folder / "default.json"]):
        yield Example(str(path.relative_to(folder)), (path,))
