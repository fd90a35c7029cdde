"""List the videos and pictures below a folder, with size and time of each file, and read captions beside them."""

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


def caption_file(media: Path) -> Path:
    """Path of the caption that belongs to a video or picture."""
    return media.with_suffix(SUFFIX)


def read(media: Path) -> str | None:
    """Read a clip's caption as UTF-8, stripped of white space and of a byte order mark.

    A mark of UTF-16, which editors on Windows write, is obeyed. Bytes that are no such text become U+FFFD: one
    odd letter must not cost the clip.

    Returns:
        The caption, "" where the file is empty, None where there is none.

    Raises:
        OSError: The file is there and cannot be read.
    """
    try:
        data = caption_file(media).read_bytes()
    except FileNotFoundError:
        return None
    encoding = "utf-16" if data.startswith(_UTF_16) else "utf-8-sig"
    return data.decode(encoding, errors="replace").strip()


class SourceFile(NamedTuple):
    """A file with the extension of a video or picture.

    Attributes:
        path: Path below the listed folder, with forward slashes.
        size_bytes: Size of the file.
        mtime_ns: Time of its last change.
        captioned: There may be a caption file beside it.
        problem: Why it cannot be opened, where its entry already tells.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    captioned: bool
    problem: str | None = None


class Listing(NamedTuple):
    """A dataset's files, and what a list says of them; arrays have one element a file.

    Attributes:
        entries: The files.
        captions: Texts, null for none; None where captions lie beside the files.
        scores: Numbers by name, NaN for none.
        note: What was taken of the list or folder and what was not.
    """

    entries: list[SourceFile]
    captions: Any = None
    scores: Mapping[str, NDArray[np.float64]] = MappingProxyType({})
    note: str | None = None


def list_folder(name: str, root: Path) -> Listing:
    """List a dataset's media files, depth first, in sorted order; hidden files and folders are skipped.

    Links are followed, but no folder is entered from within itself, and no run folder: what a run
    generated is no footage.

    Raises:
        UserError: The folder is missing, cannot be read, or holds no media. A folder that cannot be
            read is no empty folder: its clips would pass for deleted ones.
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
    found = ", ".join(f"{extension} ({count})" for extension, count in others.most_common(8))
    if not entries:
        raise _no_media(name, root, found)
    note = f"{root}: passed over, by their names neither videos nor pictures: {found}" if found else None
    return Listing(entries, note=note)


def _no_media(name: str, root: Path, found: str) -> UserError:
    return UserError(
        f"the folder holds no video and no picture; found: {found or 'nothing'}",
        code="no-media",
        field=f"dataset {name!r}",
        value=str(root),
        remedy=f"give a folder with files named {' '.join(sorted(probe.EXTENSIONS))}",
    )


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
            remedy="mend its permissions, or move it out of the dataset",
        ) from error
    place = (status.st_dev, status.st_ino)
    if place in above:  # a link to a folder that it lies in
        return
    names = {e.name for e in inside}
    if prefix and RunFolder(folder).info_file.name in names and _is_run(RunFolder(folder)):
        return
    for entry in inside:
        if entry.is_dir():
            yield from _walk(name, folder / entry.name, f"{prefix}{entry.name}/", (*above, place), others)
        elif probe.kind_of(entry.name) is not None:
            yield _entry(entry, prefix, names)
        elif not entry.name.endswith(SUFFIX):
            others[Path(entry.name).suffix.lower() or "no extension"] += 1


def _is_run(run: RunFolder) -> bool:
    """Tell our `run.json` from another's of that name, whose footage must not vanish silently."""
    try:
        info = json.loads(run.info_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(info, dict) and {"format", "id"} <= info.keys()


def _entry(entry: os.DirEntry[str], prefix: str, names: set[str]) -> SourceFile:
    path = prefix + entry.name
    captioned = caption_file(Path(entry.name)).name in names
    if not path.isprintable() and any("\udc80" <= letter <= "\udcff" for letter in path):
        readable = os.fsencode(path).decode("utf-8", errors="backslashreplace")
        return SourceFile(readable, 0, 0, False, "file name is not UTF-8")
    try:
        status = entry.stat()
    except OSError as error:
        return SourceFile(path, 0, 0, captioned, f"cannot be read: {error.strerror}")
    problem = None if stat.S_ISREG(status.st_mode) else "not a regular file"
    return SourceFile(path, status.st_size, status.st_mtime_ns, captioned, problem)
