"""Configs that other trainers publish, to be imported one by one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Example(NamedTuple):
    """A published config: its files, or the command line that a page of documentation gives."""

    name: str
    files: tuple[Path, ...]
    command: str | None = None
