"""List the videos and pictures below a folder with size and time of each file, and read their caption files."""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelworks.catalog import probe
from reelworks.core.errors import UserError
from reelworks.run.folder import RunFolder

SUFFIX = ".txt"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read(media: Path) -> str | None:
    """Read a clip's caption as UTF-8, stripped of white space and of a byte order mark.

    Text with a UTF-16 byte order mark, which editors on Windows write, is decoded as such. Invalid bytes become
    U+FFFD: one wrong character must not exclude the clip. The caption of a clip without a caption file is None.
    """
    try:
        data = media.with_suffix(SUFFIX).read_bytes()
    except FileNotFoundError:
        return None
    encoding = "utf-16" if data.startswith(_UTF_16) else "utf-8-sig"
    return data.decode(encoding, errors="replace").strip()


class SourceFile(NamedTuple):
    """A file with the extension of a video or picture."""

    path: str  # below the listed folder, with forward slashes
    size_bytes: int
    mtime_ns: int
    captioned: bool  # whether it may have a caption file
    problem: str | None = None  # why it cannot be opened, if the folder entry shows that already
    cut: str = ""  # `CatalogRows.cut` that its rows shall have
    clip: str = ""  # text of its range of frames (`clip_ranges`); "" for the whole file, or for one that is not cut yet


class Listing(NamedTuple):
    """A dataset's files with the captions and scores of a list; arrays have one element for each file."""

    entries: list[SourceFile]
    captions: Any = None  # null for none; None if captions are in files of their own
    scores: Mapping[str, NDArray[np.float64]] = MappingProxyType({})  # by name, NaN for a missing one
    note: str | None = None  # message about what was used of the list or folder and what was ignored


def list_folder(name: str, root: Path) -> Listing:
    """List a dataset's media files, depth first, in sorted order; hidden files and folders are skipped.

    Links are followed, except to a folder that contains them. Run folders are skipped: what a run generated is
    not training data. An unreadable folder is refused, since its clips would otherwise count as deleted.
    """
    if not root.is_dir():
        raise UserError(
            "this is a file, not a folder" if root.exists() else "there is no such folder",
            code="no-such-folder",
            field=f"dataset {name!r}",
            value=str(root),
            remedy="give the folder that holds the videos and pictures",
        )
    others: Counter[str] = Counter()
    entries = list(_walk(name, root, "", (), others))
    other_files = ", ".join(f"{extension} ({count})" for extension, count in others.most_common(8))
    if not entries:
        raise UserError(
            f"the folder contains no videos or pictures; it contains: {other_files or 'nothing'}",
            code="no-media",
            field=f"dataset {name!r}",
            value=str(root),
            remedy=f"give a folder that contains files of the types {' '.join(sorted(probe.EXTENSIONS))}",
        )
    note = f"{root}: ignored files that are not videos or pictures: {other_files}" if other_files else None
    return Listing(entries, note=note)


def _walk(
    name: str, folder: Path, prefix: str, above: tuple[tuple[int, int], ...], others: Counter[str]
) -> Iterator[SourceFile]:
    try:
        status = folder.stat()
        with os.scandir(folder) as scanned:
            inside = sorted((e for e in scanned if not e.name.startswith(".")), key=lambda e: e.name)
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be read ({error.strerror})",
            code="folder-unreadable",
            field=f"dataset {name!r}",
            remedy="correct its permissions, or move it out of the dataset",
        ) from error
    identity = (status.st_dev, status.st_ino)
    if identity in above:  # a link to a folder that contains it
        return
    names = {e.name for e in inside}
    if prefix and RunFolder(folder).info_file.name in names and _is_run(RunFolder(folder)):
        return
    for entry in inside:
        if entry.is_dir():
            yield from _walk(name, folder / entry.name, f"{prefix}{entry.name}/", (*above, identity), others)
        elif probe.kind_of(entry.name) is not None:
            yield _entry(entry, prefix, names)
        elif not entry.name.endswith(SUFFIX):
            others[Path(entry.name).suffix.lower() or "no extension"] += 1


def _is_run(run: RunFolder) -> bool:
    """Return whether `run.json` is that of a run: footage beside another file of that name must be kept."""
    try:
        info = json.loads(run.info_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(info, dict) and {"format", "id"} <= info.keys()


def _entry(entry: os.DirEntry[str], prefix: str, names: set[str]) -> SourceFile:
    path = prefix + entry.name
    captioned = Path(entry.name).with_suffix(SUFFIX).name in names
    if not path.isprintable() and any("\udc80" <= letter <= "\udcff" for letter in path):
        readable = os.fsencode(path).decode("utf-8", errors="backslashreplace")
        return SourceFile(readable, 0, 0, False, "file name is not UTF-8")
    try:
        status = entry.stat()
    except OSError as error:
        return SourceFile(path, 0, 0, captioned, f"cannot be read: {error.strerror}")
    problem = None if stat.S_ISREG(status.st_mode) else "not a regular file"
    return SourceFile(path, status.st_size, status.st_mtime_ns, captioned, problem)
