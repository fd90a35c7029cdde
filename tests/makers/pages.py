"""What pages of the documentation tell people to type, and what they say will be printed, read out of the Markdown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    "reelworks",
    "make",
    "pip",
    "python",
    "torchrun",
    "ray",
    "export",
    "du",
    "tail",
    "cd",
    ".",
    "uv",
    "docker",
    "bash",
)
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`(reelworks\s[^`]+)`")
# More than the names of verbs: an option, a path, or a name in capitals.
_HAS_ARGUMENTS = re.compile(r" --?[a-z]|[^a-z -]")
_NUMBER = re.compile(r"\d[\d,.:]*(?:e-?\d+)?")
_DIGEST = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12}\b")


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


class Typed(NamedTuple):
    """A line that people type, without its comment, and its place in the text of the page."""

    line: str
    place: int


class Printed(NamedTuple):
    """Lines that a page says are printed (a block of `text`), and their place in its text."""

    lines: list[str]
    place: int

    def regex(self, exact: bool = True) -> re.Pattern[str]:
        """Match these lines in an output, however they are wrapped; `...` is anything, or nothing.

        If not `exact`, numbers, units of bytes, sizes and `…` stand for others. Rules of tables are left out; those of the output are to be left out, too.
        """
        words = [word for word in " ".join(self.lines).split() if word.strip("─")]
        parts = ["..." if word == "..." else _word(word, exact) for word in words]
        pattern = r"\s+".join(parts).replace(r"...\s+", r"(?:.*?\s+)?").removesuffix(r"\s+...")
        return re.compile(pattern, re.DOTALL)


def _word(word: str, exact: bool) -> str:
    if exact:
        return re.escape(word)
    if re.fullmatch(r"[kMG]B\W?", word):  # also before a bracket or a comma
        return "[kMG]?B" + re.escape(word[2:])
    if re.fullmatch(r"\d+px?", word):
        return r"\d+px?"
    parts = _NUMBER.split(_DIGEST.sub("0", word))
    return r"(?:[0-9a-f]{12}|\d[\d,.:]*(?:e-?\d+)?)".join(map(re.escape, parts)).replace("…", r"\S*")


def steps(page: str) -> list[Typed | Printed]:
    """Return what a page tells to type, in blocks and in its text, and what it says is printed, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found: list[Typed | Printed] = []
    for fence in _FENCE.finditer(text):
        indent, language, body = fence.groups()
        lines = [line.removeprefix(indent) for line in body.splitlines()]
        if language == "text":
            found.append(Printed(lines, fence.start()))
        elif language in ("", "bash", "sh"):
            found += [Typed(_without_comment(line), fence.start() + i) for i, line in enumerate(lines)]
    prose = _FENCE.sub(lambda fence: " " * len(fence[0]), text)
    for span in _SPAN.finditer(prose):
        line = " ".join(span[1].split())
        if _HAS_ARGUMENTS.search(line):
            found.append(Typed(line, span.start()))
    return sorted(found, key=lambda step: step.place)


def _without_comment(line: str) -> str:
    return re.sub(r"\s+#.*", "", line)
