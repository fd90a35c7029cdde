"""Presets that OneTrainer publishes in training_presets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from drills._imports import Example


def examples(mirror: Path) -> Iterator[Example]:
    """Yield the presets of a checkout of Nerogar/OneTrainer."""
    folder = mirror / "training_presets"
    for path in sorted(folder.rglob("*.json")):
        yield Example(str(path.relative_to(folder)), (path,))
