"""The files of a dataset as a listing of its folder, its address or its list finds them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelworks.core.errors import UserError
from reelworks.data.catalog.scan.caption_names import NO_FILES, SUFFIXES, CaptionFiles, CaptionNames
from reelworks.data.catalog.store import companions
from reelworks.data.catalog.store.integrity import OUTSIDE
from reelworks.data.media import formats
from reelworks.data.media.probe import Probe

NO_FILE = "no such file"
NO_TARGET = "a link to what is not there"
# Fields of a file, and columns of its rows, by which it is known without being opened: any other value may be another content.
STATE = ("start", "size_bytes", "mtime_ns")


class SourceFile(NamedTuple):
    """A file of a dataset that is a video or picture, or is named as one that is not read."""

    path: str  # below the listed folder, with forward slashes
    size_bytes: int = 0
    mtime_ns: int = 0
    problem: str | None = None  # why it cannot be opened, if the folder entry shows that already
    start: int = -1  # first byte in an archive; -1 for a file of its own
    captions: CaptionFiles | None = NO_FILES  # its caption files; None if those beside it are to be looked for
    stated: Probe | None = None  # measures that a trusted list states, for which the file is not opened
    cut: str = ""  # `CatalogRows.cut` that its rows shall have
    clip: str = ""  # text of its range of frames (`clip_ranges`); "" for the whole file, or for one that is not cut yet


class Listing(NamedTuple):
    """A dataset's files with the captions and scores of a list; arrays have one element for each file."""

    entries: list[SourceFile]
    captions: Any = None  # null for none; None if captions are in files of their own
    scores: Mapping[str, NDArray[np.float64]] = MappingProxyType({})  # by name, NaN for a missing one
    note: str | None = None  # message about what was used of the list or folder and what was ignored
    kept: Any = None  # of a list, a mask of its rows, of which equal ones are one file


def count_text(extensions: Counter[str]) -> str:
    """Return the commonest suffixes with their counts."""
    return ", ".join(f"{extension} ({count})" for extension, count in extensions.most_common(8))


def count_sidecar(name: str, captions: CaptionNames, sidecars: Counter[str]) -> None:
    """Count a file beside the clips, unless it is the caption of one."""
    if not (name.lower().endswith(SUFFIXES) and captions.is_of_a_clip(name)):
        sidecars[extension_of(name)] += 1


def listing_of(name: str, place: str, found: Iterable[SourceFile], sidecars: Counter[str]) -> Listing:
    """Return what was found in a dataset's folder or below its address, beside which there are such sidecars once it is.

    Raises:
        UserError: It has no media.
    """
    entries = settled(found, name)
    if not any(map(may_be_read, entries)):
        kinds = sidecars + Counter(extension_of(entry.path) for entry in entries)
        raise UserError(
            f"the folder contains no videos or pictures; it contains: {count_text(kinds) or 'nothing'}",
            code="no-media",
            field=f"dataset {name!r}",
            value=place,
            remedy=f"give a folder that contains files of the types {' '.join(sorted(formats.EXTENSIONS))}, or a list of such "
            f"files as the path ({formats.LISTS_TOLD})",
        )
    hint = ""
    if lists := sorted(sidecars.keys() & set(formats.LISTS)):
        hint += f"; captions in {' '.join(lists)} are read of a list that is itself the dataset's path"
    if texts := sorted(sidecars.keys() & set(SUFFIXES)):
        hint += f"; captions in {' '.join(texts)} are read of files that lie beside a clip and have its name"
    return Listing(entries, note=f"{place}: files beside the clips: {count_text(sidecars)}{hint}" if sidecars else None)


def extension_of(name: str) -> str:
    """Return the suffix by which a file is counted."""
    return formats.extension_of(name) or "no extension"


def is_unread_sound(file: SourceFile) -> bool:
    """Return whether nothing but its kind is a reason not to read a file of sound."""
    return formats.is_sound(file.path) and file.problem == formats.why_not_read(file.path)


def may_be_read(file: SourceFile) -> bool:
    """Return whether a file may hold what its dataset is made of: clips, and sounds that are sources."""
    return formats.may_hold_clips(file.path) or (file.problem is None and formats.is_sound(file.path))


def is_hidden(path: str) -> bool:
    """Return whether a file or a folder above it is hidden, as what a Mac adds to an archive for its own use."""
    return "/." in f"/{path}" and any(part.startswith(".") and part not in (".", "..") for part in path.split("/"))


def settled(found: Iterable[SourceFile], dataset: str) -> list[SourceFile]:
    """Return files as a catalog can name them: one of each path, none outside of the folder.

    Where a readable form of a path is that of another file, the one without a problem is kept, and else the last one.
    Sounds are read in datasets of sources alone.
    """
    entries: dict[str, SourceFile] = {}
    if companions.holds_sources(dataset):
        found = (each._replace(problem=None) if is_unread_sound(each) else each for each in found)
    for entry in found:
        if is_hidden(entry.path):  # in an archive
            continue
        if (readable := formats.with_readable_bytes(entry.path)) != entry.path:
            entry = SourceFile(readable, problem="file name is not UTF-8")
        if re.search(OUTSIDE, entry.path):
            parts = entry.path.replace("\0", "\\0").split("/")
            readable = "/".join(f"_{part}" if part in ("", "..") else part for part in parts)
            entry = SourceFile(readable, problem=f"its name {entry.path!r} is not that of a file in a folder")
        former = entries.get(entry.path)
        if former is None or former.problem is not None or entry.problem is None:
            entries.pop(entry.path, None)
            entries[entry.path] = entry
    return list(entries.values())
