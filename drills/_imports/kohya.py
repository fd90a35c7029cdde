"""Blocks of settings and command lines in the documentation of sd-scripts and musubi-tuner, which publish no config files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from drills._imports import Example

_BLOCK = re.compile(r"^[ \t]*```(\w*)[ \t]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_STARTS = re.compile(r"^\s*(?:uv run.*)?(?:accelerate launch|python\s+\S*train)", re.MULTILINE)
_TRAINS = re.compile(r"\w*train\w*\.py|fine_tune\.py")


def examples(mirror: Path) -> Iterator[Example]:
    """Yield the blocks of a checkout's pages: command lines, and dataset configs, each as a file of its own."""
    folder = Path(tempfile.mkdtemp(prefix="reelworks-examples-"))
    for page in sorted(mirror.rglob("*.md")):
        for number, (language, text) in enumerate(_BLOCK.findall(page.read_text(encoding="utf-8", errors="replace"))):
            name = f"{page.stem}-{number}"
            if _STARTS.search(text) and _TRAINS.search(text):
                yield Example(name, (), text)
            elif language == "toml" and re.search(r"^\s*\[\[datasets\]\]", text, re.MULTILINE):
                file = folder / f"{name}.toml"
                file.write_text(text, encoding="utf-8")
                yield Example(name, (file,))
