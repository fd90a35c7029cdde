"""Know which files are the captions of a clip, by the names of all files of their folder.

    cat.txt, cat.caption     captions of cat.mp4, with the suffix in upper or lower case; the first of them is read
    cat.mp4.txt              too, where there is none of those
    cat.1.txt, cat.2.txt, …  further ones, unless they belong to a clip such as cat.1.mp4, which need not be one that is read
    cat.json                 too, where there is none of those, with the caption as one of `list_columns.CAPTION_NAMES`

Names in composed and in decomposed Unicode, which look alike, are the same unless each has a clip of its own.
"""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Callable, Collection
from functools import cache, cached_property
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

from reelworks.data.media import formats

SUFFIX = ".txt"  # of the file that is written for a clip without one
JSON = ".json"  # beside a text it holds other facts, and often the same text
SUFFIXES = (SUFFIX, ".caption", JSON)  # the first that exists is read
_MOST_ASKED = 100  # of a server that says of any name that it is there


class Range(NamedTuple):
    """Bytes of an archive that hold a caption."""

    start: int
    size: int
    name: str  # of the member that they are


class CaptionFiles(NamedTuple):
    """The caption files of a clip.

    Attributes:
        read: The files that are read, a line of the caption each if there are several: ranges of an archive, or ends
            of names: ".txt" is that of the clip with another suffix; after "/" is a whole name.
        rivals: Further ones that may say something else, and are not read.
        unclear: Name of a caption that may be another clip's, if the clip has no other.
    """

    read: tuple[str | Range, ...] = ()
    rivals: tuple[str | Range, ...] = ()
    unclear: str = ""


NO_FILES = CaptionFiles()
_shared = cache(CaptionFiles)  # few different ones for millions of clips


class CaptionNames:
    """The caption files among others.

    Args:
        names: Names of all files of the folder, or paths of those of several.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._of_base: dict[str, list[str]] = {}
        for name in names:
            base, _, last = name.rpartition(".")
            if f".{last.lower()}" in SUFFIXES:
                self._of_base.setdefault(_key(base), []).append(name)
        self._has_further = any(base.endswith(".1") for base in self._of_base)  # in few folders

    @cached_property
    def _stems(self) -> set[str]:
        """Names of clips without their suffixes."""
        return {posixpath.splitext(name)[0] for name in self._names if formats.kind_of(name)}

    @cached_property
    def _taken(self) -> set[str]:
        """Names of clips, sounds and what else may have a caption, without their suffixes."""
        return {stem for name in self._names if (stem := formats.media_stem(name)) is not None}

    @cached_property
    def _owners(self) -> set[str]:
        """Names after which captions may be named."""
        return {_key(base) for name in self._names if (stem := formats.media_stem(name)) for base in (stem, name)}

    def is_of_a_clip(self, caption: str) -> bool:
        """Return whether a caption file is named after a clip, a sound, or what may become one."""
        base = _key(caption.rpartition(".")[0])
        first, _, number = base.rpartition(".")
        return base in self._owners or (number.isdecimal() and first in self._owners)

    def find(self, clip: str) -> tuple[list[str], list[str]]:
        """Return the names of a clip's caption files that are read, and of those that are not."""
        stem, whole = posixpath.splitext(clip)[0], self.named(clip)
        first = self.named(stem) + (whole if whole and clip not in self._taken else [])
        if len(first) > 1:
            first = [name for name in first if not is_json(name)] or first[:1]
        further = list[str]()
        while self._has_further and (more := self._further(f"{stem}.{len(further) + 1}")):
            further.append(more)
        return first[:1] + further, first[1:]

    def files_of(self, clip: str) -> CaptionFiles:
        """Return the caption files of a clip, given its name."""
        stem, (read, rivals) = posixpath.splitext(clip)[0], self.find(clip)
        return _shared(tuple(_end(name, stem) for name in read), tuple(_end(name, stem) for name in rivals))

    def named(self, base: str) -> list[str]:
        """Return the caption files of this name with a suffix of captions, the preferred one first."""
        there = self._of_base.get(_key(base), [])
        if not there or (len(there) == 1 and there[0].startswith(f"{base}.")):
            return there
        exact = [name for name in there if name.rpartition(".")[0] == base]
        alike = (
            name for name in there if name.rpartition(".")[0] not in self._stems and _folder(name) == _folder(base)
        )
        return sorted(exact or alike, key=lambda name: (SUFFIXES.index(formats.extension_of(name)), name.swapcase()))

    def _further(self, base: str) -> str | None:
        named = (name for name in self.named(base) if formats.extension_of(name) == SUFFIX)
        return next(named, None) if base not in self._taken else None


class AskedNames(CaptionNames):
    """The caption files in folders that cannot be listed: names in small letters are asked for, until one of a kind is there.

    Args:
        clips: Paths of the clips.
        is_there: Asks for a file.
    """

    def __init__(self, clips: Collection[str], is_there: Callable[[str], bool]) -> None:
        super().__init__(clips)
        self._is_there = is_there

    def find(self, clip: str) -> tuple[list[str], list[str]]:
        """Return the names of a clip's caption files that are read, and no others, which are not asked for."""
        stem = posixpath.splitext(clip)[0]
        first = sorted((base + suffix for base in (stem, *({clip} - self._taken)) for suffix in SUFFIXES), key=is_json)
        bases = takewhile(lambda base: base not in self._taken, (f"{stem}.{i}" for i in range(1, _MOST_ASKED)))
        further = takewhile(self._is_there, (base + SUFFIX for base in bases))
        return [*islice(filter(self._is_there, first), 1), *further], []


def is_json(name: str) -> bool:
    """Return whether a caption file holds other facts too, and is read only where there is no text."""
    return name.lower().endswith(JSON)


def _key(base: str) -> str:
    return base if base.isascii() else unicodedata.normalize("NFC", base)


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _end(name: str, stem: str) -> str:
    return name.removeprefix(stem) if name.startswith(stem) else f"/{posixpath.basename(name)}"


def name_of(end: str, clip: str) -> str:
    """Return the name of a caption file that `CaptionFiles` gives for a clip."""
    return end[1:] if end.startswith("/") else posixpath.splitext(clip)[0] + end


def file(media: Path, files: CaptionFiles) -> Path:
    """Return the text file of a clip's caption, the first of several, which may not exist yet."""
    first = next((name for name in files.read if isinstance(name, str) and not is_json(name)), SUFFIX)
    return media.with_name(name_of(first, media.name))
