"""List the files below a folder with size and time of each, and the caption files of clips.

Files of other types are listed with the reason why they are not read, except sidecars, which are counted.
"""

from __future__ import annotations

import os
import re
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelworks.core import user_files
from reelworks.core.errors import UserError
from reelworks.data.catalog.scan import archive
from reelworks.data.catalog.scan.caption_names import NO_FILES, SUFFIXES, CaptionFiles, CaptionNames
from reelworks.data.catalog.store.integrity import OUTSIDE
from reelworks.data.media import formats, location
from reelworks.data.media.probe import Probe
from reelworks.data.run.folder import RunFolder

NO_FILE = "no such file"
# What a run writes into its folder.
RUN_FOLDERS = frozenset(getattr(RunFolder(Path()), name).name for name in vars(RunFolder) if name.endswith("_folder"))


class SourceFile(NamedTuple):
    """A file of a dataset that is a video or picture, or is named as one that is not read."""

    path: str  # below the listed folder, with forward slashes
    size_bytes: int
    mtime_ns: int
    captioned: bool  # whether it may have caption files
    problem: str | None = None  # why it cannot be opened, if the folder entry shows that already
    start: int = -1  # first byte in an archive; -1 for a file of its own
    captions: CaptionFiles | None = None  # its caption files; None if those beside it are to be looked for
    stated: Probe | None = None  # measures that a trusted list states, for which the file is not opened
    cut: str = ""  # `CatalogRows.cut` that its rows shall have
    clip: str = ""  # text of its range of frames (`clip_ranges`); "" for the whole file, or for one that is not cut yet


class Listing(NamedTuple):
    """A dataset's files with the captions and scores of a list; arrays have one element for each file."""

    entries: list[SourceFile]
    captions: Any = None  # null for none; None if captions are in files of their own
    scores: Mapping[str, NDArray[np.float64]] = MappingProxyType({})  # by name, NaN for a missing one
    note: str | None = None  # message about what was used of the list or folder and what was ignored


def list_folder(name: str, root: Path) -> Listing:
    """List a dataset's files, depth first, in sorted order, but for captions, sidecars, and what is hidden.

    Links are followed, except to a folder that contains them. Run folders are skipped: what a run generated is
    not training data, nor are a run's own folders in a dataset's folder that is its output. An unreadable folder is refused, since its clips would otherwise count as deleted.
    """
    if not root.is_dir():
        raise UserError(
            "this is a file, not a folder" if root.exists() else "there is no such folder",
            code="no-such-folder",
            field=f"dataset {name!r}",
            value=str(root),
            remedy=f"give the folder that holds the videos and pictures, or a list of them ({formats.LISTS_TOLD})",
        )
    sidecars: Counter[str] = Counter()
    entries = settled(_walk(name, root, "", (), sidecars))
    if not any(formats.may_hold_clips(entry.path) for entry in entries):
        found = sidecars + Counter(extension_of(entry.path) for entry in entries)
        raise UserError(
            f"the folder contains no videos or pictures; it contains: {count_text(found) or 'nothing'}",
            code="no-media",
            field=f"dataset {name!r}",
            value=str(root),
            remedy=f"give a folder that contains files of the types {' '.join(sorted(formats.EXTENSIONS))}, or a list of such "
            f"files as the path ({formats.LISTS_TOLD})",
        )
    note = f"{root}: files beside the clips: {count_text(sidecars)}" if sidecars else None
    return Listing(entries, note=note)


def count_text(extensions: Counter[str]) -> str:
    """Return the commonest suffixes with their counts."""
    return ", ".join(f"{extension} ({count})" for extension, count in extensions.most_common(8))


def extension_of(name: str) -> str:
    """Return the suffix by which a file is counted."""
    return formats.extension_of(name) or "no extension"


def _walk(
    name: str, folder: Path, prefix: str, above: tuple[tuple[int, int], ...], sidecars: Counter[str]
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
    if RunFolder(folder).info_file.name in names and _is_run(RunFolder(folder)):
        if prefix:
            return
        inside = [entry for entry in inside if entry.name not in RUN_FOLDERS]  # the dataset's folder is the output
    captions = CaptionNames(names)
    for entry in inside:
        if _is_folder(entry):
            yield from _walk(name, folder / entry.name, f"{prefix}{entry.name}/", (*above, identity), sidecars)
        elif formats.is_sidecar(entry.name):
            sidecars.update([] if entry.name.lower().endswith(SUFFIXES) else [extension_of(entry.name)])
        elif entry.name.endswith(formats.ARCHIVE_SUFFIX):
            yield from list_archive(prefix + entry.name, Path(entry.path), sidecars)
        else:
            yield _entry(entry, prefix, captions)


def settled(found: Iterable[SourceFile]) -> list[SourceFile]:
    """Return files as a catalog can name them: one of each path, none outside of the folder.

    Where a readable form of a path is that of another file, the one without a problem is kept, and else the last one.
    """
    entries: dict[str, SourceFile] = {}
    for entry in found:
        if re.search(OUTSIDE, entry.path):
            parts = entry.path.replace("\0", "\\0").split("/")
            readable = "/".join(f"_{part}" if part in ("", "..") else part for part in parts)
            entry = SourceFile(readable, 0, 0, False, f"its name {entry.path!r} is not that of a file in a folder")
        former = entries.get(entry.path)
        if former is None or former.problem is not None or entry.problem is None:
            entries.pop(entry.path, None)
            entries[entry.path] = entry
    return list(entries.values())


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def list_archive(path: str, file: Path, sidecars: Counter[str] | None = None) -> Iterator[SourceFile]:
    """Yield the media members of an archive on this machine, or itself with the reason why it cannot be read."""
    try:
        with user_files.opened(file) as opened:
            changed_ns = location.changed_ns(os.fstat(opened.fileno()))
            yield from archived(path, changed_ns, opened, Counter() if sidecars is None else sidecars)
    except OSError as error:
        yield SourceFile(path, 0, 0, False, f"cannot be read: {error.strerror}")


class Archives:
    """The tar archives whose members a list names, each of which is read once.

    Args:
        members: Returns the members of the archive at a path, named as in a listing of its folder; None if there is none.
    """

    def __init__(self, members: Callable[[str], list[SourceFile] | None]) -> None:
        self._members, self._found = members, dict[str, dict[str, SourceFile] | None]()

    def member(self, path: str) -> SourceFile | None:
        """Return a file such as "shard.tar/0001.mp4", None if it is in no archive."""
        for match in re.finditer(rf"{re.escape(formats.ARCHIVE_SUFFIX)}(?=/)", path):
            archive = path[: match.end()]
            if archive not in self._found:
                members = self._members(archive)
                self._found[archive] = None if members is None else {file.path: file for file in members}
            if (found := self._found[archive]) is not None:
                whole = found.get(archive)  # of which no member can be read
                return found.get(path) or SourceFile(path, 0, 0, False, NO_FILE if whole is None else whole.problem)
        return None


def archived(path: str, changed_ns: int, file: BinaryIO, sidecars: Counter[str]) -> Iterator[SourceFile]:
    """Yield the media members of a tar archive, or the archive itself with the reason why it cannot be read."""
    try:
        members, inside = archive.members(file)
    except tarfile.TarError as error:
        compressed = file.seek(0) == 0 and file.read(4).startswith(
            (b"\x1f\x8b", b"BZh", b"\xfd7zX", b"\x28\xb5\x2f\xfd")
        )
        reason = "it is compressed, so clips cannot be read in place; unpack it" if compressed else str(error)
        yield SourceFile(path, 0, 0, False, f"not a tar archive: {reason}")
        return
    sidecars.update(inside)
    for m in members:
        yield SourceFile(
            f"{path}/{m.name}",
            m.size,
            changed_ns,
            m.captions != NO_FILES,
            m.problem,
            start=m.start,
            captions=m.captions,
        )


def _is_run(run: RunFolder) -> bool:
    """Return whether `run.json` is that of a run: footage beside another file of that name must be kept."""
    try:
        info = user_files.read_json(run.info_file)
    except (OSError, ValueError):
        return False
    return isinstance(info, dict) and {"format", "id"} <= info.keys()


def _entry(entry: os.DirEntry[str], prefix: str, names: CaptionNames) -> SourceFile:
    path = prefix + entry.name
    captions = names.files_of(entry.name)
    captioned = captions != NO_FILES
    if not path.isprintable() and any("\udc80" <= letter <= "\udcff" for letter in path):
        readable = os.fsencode(path).decode("utf-8", errors="backslashreplace")
        return SourceFile(readable, 0, 0, False, "file name is not UTF-8")
    try:
        status = entry.stat()
    except OSError as error:
        return SourceFile(path, 0, 0, captioned, f"cannot be read: {error.strerror}", captions=captions)
    problem = None if formats.kind_of(entry.name) else formats.why_not_read(entry.name)
    problem = problem if stat.S_ISREG(status.st_mode) else "not a regular file"
    return SourceFile(path, status.st_size, location.changed_ns(status), captioned, problem, captions=captions)
