"""Jobs that ai-toolkit publishes in config/examples and with its extensions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from drills._imports import Example


def examples(mirror: Path) -> Iterator[Example]:
    """Yield the jobs of a checkout of ostris/ai-toolkit."""
    for folder in ("config", "extensions", "extensions_built_in"):
        for path in sorted((mirror / folder).rglob("*.y*ml")):
            yield Example(str(path.relative_to(mirror)), (path,))
