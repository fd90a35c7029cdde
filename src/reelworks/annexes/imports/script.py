"""The commands of a script, as far as they could be followed without running it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reelworks.core import user_files
from reelworks.core.errors import UserError


class Unknown(NamedTuple):
    """A value that nobody knows here.

    Attributes:
        source: How the script writes it.
        why: Why, as the end of a sentence.
        has_options: Whether it may hold options.
        is_several: Whether it may be several words, or an option, where it stands.
    """

    source: str
    why: str
    has_options: bool = False
    is_several: bool = False


class Partly(str):
    """A text in which something is unknown, which stands there as the script writes it."""

    unknown: Unknown

    def __new__(cls, text: str, unknown: Unknown) -> Partly:
        """Make one of a text."""
        made = super().__new__(cls, text)
        made.unknown = unknown
        return made


Value = str | list[str] | Unknown


def unknown_in(*values: Any) -> Unknown | None:
    """Return what is unknown in values, the first of those that may stand for most; None if nothing is."""
    texts = [each for value in values for each in (value if isinstance(value, list) else [value])]
    found = (
        each if isinstance(each, Unknown) else each.unknown for each in texts if isinstance(each, Unknown | Partly)
    )
    return max(found, key=lambda each: (each.has_options, each.is_several), default=None)


def joined(texts: Iterable[str | Unknown], between: str = "") -> str:
    """Return texts as one."""
    texts = [*texts]
    text = between.join(each.source if isinstance(each, Unknown) else each for each in texts)
    unknown = unknown_in(*texts)
    return text if unknown is None else Partly(text, unknown)


def decided(held: Sequence[bool | None], *, by: bool) -> bool | None:
    """Return whether conditions hold together, of which one that is `by` decides; None if that is unknown."""
    if by in held:
        return by
    return None if None in held else not by


def entered(now: Value, words: Sequence[str], source: str) -> Value:
    """Return the folder that commands run in from now on, from that in which the script began."""
    if len(words) != 1 or words[0] == "-" or words[0].startswith("~") or unknown_in([*words], now) is not None:
        return Unknown("$PWD", f"is set by {source[:60]!r}")
    return _within(str(now), words[0])


def from_start(now: Value, word: str) -> str:
    """Return a word that is a relative path of something, or an option with one, from where the script began."""
    option, sign, path = word.rpartition("=") if word.startswith("--") else ("", "", word)
    if now == "." or unknown_in(now, word) is not None or path[:1] in ("", "-", "/") or path.isdecimal():
        return word
    there = _within(str(now), path)
    return word if user_files.existing(there) is None else f"{option}{sign}{there}"


def _within(folder: str, path: str) -> str:
    """Return a path in a folder, with slashes, also one of Windows."""
    path = path.replace("\\", "/")
    return path if re.match("[A-Za-z]:", path) else posixpath.normpath(posixpath.join(folder, path))


@dataclass
class Command:
    """A command.

    Attributes:
        words: Its words; what is unknown in one stands there as the script writes it.
        unread: What could not be followed and may hold any options, each as a part of a sentence.
        notes: Why values are unknown, by how the script writes them.
    """

    words: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def add(self, word: str | Unknown, place: str = "") -> None:
        """Add a word, or what may be several; what may stand for any options is left out."""
        if isinstance(word, Unknown):
            word = Partly(word.source, word._replace(is_several=True))
        unknown = unknown_in(word)
        follows = bool(self.words) and self.words[-1].startswith("-") and "=" not in self.words[-1]
        is_value = follows or (unknown is not None and "=" in word.partition(unknown.source)[0])
        if unknown is not None and (unknown.has_options or (unknown.is_several and not is_value)):
            self.unread.append(f"{unknown.source}{place}, which {unknown.why}")
            if word == unknown.source:
                return
        elif unknown is not None:
            self.notes[unknown.source] = unknown.why
        self.words.append(str(word))

    def require_followed(self, file: str) -> None:
        """Refuse a command of which options may be missing here: they would become the trainer's defaults."""
        if self.unread:
            raise UserError(
                f"the command has {self.unread[0]}: the options in it are not known",
                code="script-not-followed",
                field="FILE",
                value=file,
                remedy="write these options out in the script, or give the whole command line with --command",
            )


@dataclass
class Script:
    """Commands, variables and written files of a script, as far as it is followed.

    Attributes:
        commands: All commands in their order, but for those that only print.
        variables: What they are set to at its end.
        files: Contents of files that it writes from its own text, by name.
    """

    commands: list[Command] = field(default_factory=list)
    variables: dict[str, Value] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def unread_variables(self) -> dict[str, str]:
        """Return why variables are unknown, in parts or as a whole, by name."""
        found = {name: unknown_in(value) for name, value in self.variables.items()}
        return {name: unknown.why for name, unknown in found.items() if unknown is not None}
