"""What pages of the documentation tell people to type, and what they say will be printed, read out of the Markdown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code: its language, empty for a terminal, and its lines without the indentation of the block."""

    language: str
    lines: list[str]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, by its path below the project."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for indent, language, body in _FENCE.findall(text):
        found.append(Block(language, [line.removeprefix(indent) for line in body.splitlines()]))
    return found


def commands(page: str) -> list[list[str]]:
    """Return the words of each `reelworks` command of a page, in order, without comments."""
    lines = [line for block in blocks(page) if block.language in ("", "bash", "sh") for line in block.lines]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("reelworks ")]


def printed_after(page: str, command: str) -> list[str]:
    """Return the lines of the block that follows the block of a command."""
    found = blocks(page)
    place = next(i for i, block in enumerate(found) if command in block.lines)
    return found[place + 1].lines
