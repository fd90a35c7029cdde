"""Find the clips to caption in folders, lists and catalogs, with the caption that each has and where a new one belongs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reelworks.core.errors import UserError
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import caption_names, caption_texts, listing
from reelworks.data.catalog.scan.caption_names import NO_FILES
from reelworks.data.catalog.scan.caption_texts import Unsettled, Waiting
from reelworks.data.catalog.scan.source_files import SourceFile
from reelworks.data.catalog.store import companions
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.media import formats, location, storages
from reelworks.data.media.formats import is_list
from reelworks.data.media.location import MediaPath

_IN_LIST = "its captions are those of a list's column, which files beside the clips do not replace; add --list OUT"
IN_CATALOG = "the catalog has captions of a list's column, and no file beside the clip; add --list OUT, or scan again if files are gone"
_IN_ARCHIVE = "a member of a tar archive, beside which no file can be written; add --list OUT"
_REMOTE = "at an address, to which no caption is written; add --list OUT"
_RANGE = "a range of a file, whose caption file is that of the whole; add --list OUT"


# Bytes of a caption file's name; that under which it is written first is 14 bytes longer, and file systems take 255.
_LONGEST_NAME = 241


@dataclass(frozen=True)
class CaptionClip:
    """A clip that may be captioned.

    Attributes:
        label: "dataset/path", with its range, as reports name it.
        root: Folder or address of its dataset.
        path: Path below it.
        range: Text of its range of frames (`data.catalog.scan.clip_ranges`), "" for a whole file.
        file: Place of the file.
        size_bytes, mtime_ns: Size and time of change as listed.
        caption: The caption that it has, None for none.
        place: The caption file to write; None if only a list can hold its caption.
        why_no_place: Why there is no such file.
        problem: Why it cannot be captioned at all, if that is known already.
        undecoded: Name of its caption file if that is in an unknown encoding, which only `overwrite` writes over.
    """

    label: str
    root: str
    path: str
    range: str
    file: MediaPath
    size_bytes: int
    mtime_ns: int
    caption: str | None
    place: Path | None
    why_no_place: str = ""
    problem: str | None = None
    undecoded: str = ""

    @property
    def is_captioned(self) -> bool:
        """Whether it has a caption that is not empty."""
        return bool(self.caption and self.caption.strip())


@dataclass(frozen=True)
class CaptionSource:
    """A folder, a list or a catalog, and its clips in order."""

    given: str
    root: str
    clips: tuple[CaptionClip, ...]
    list_file: MediaPath | None = None  # the list that it is
    kept: Any = None  # which rows of it are clips


def find(data: Sequence[str], root: str | None) -> list[CaptionSource]:
    """Return the clips of all data.

    Raises:
        UserError: A folder, list or catalog is missing or damaged, or holds no clips.
    """
    found = [
        _of_catalog(one) if not storages.is_url(one) and Path(one, "catalog.json").is_file() else _of_source(one, root)
        for one in data
    ]
    seen: dict[tuple[str, str], int] = {}
    for i, source in enumerate(found):
        for clip in source.clips:
            if (other := seen.setdefault((str(clip.file), clip.range), i)) != i:
                raise UserError(
                    f"{clip.file} is in {found[other].given}, too",
                    code="data-given-twice",
                    field="DATA",
                    value=source.given,
                    remedy="name each clip once",
                )
    return found


def _of_catalog(given: str) -> CaptionSource:
    rows = companions.without(Catalog.open(Path(given)).live())
    clips, in_list = list[tuple[CaptionClip, Unsettled | None]](), _in_lists(rows)
    for i in range(len(rows)):
        if not formats.may_hold_clips(rows.path[i].as_py()):
            continue
        file, first = rows.file(i), int(rows.first_frame[i])
        problem = None if rows.readable[i] else rows.error[i].as_py()
        text = f"{first}:{first + int(rows.num_frames[i])}" if rows.is_range[i] and problem is None else ""
        entry = SourceFile(
            rows.path[i].as_py(),
            int(rows.size_bytes[i]),
            int(rows.mtime_ns[i]),
            problem,
            captions=None if isinstance(file, Path) else NO_FILES,
            clip=text,
        )
        caption = rows.caption[i].as_py()
        clips.append(
            _clip(rows.label(i), rows.root[i].as_py(), entry, file, caption, in_list=IN_CATALOG if in_list[i] else "")
        )
    roots = {clip.root for clip, _ in clips}
    if not clips:
        raise UserError(
            "the catalog has no clips", code="no-media", field="DATA", value=given, remedy="scan a folder into it"
        )
    return CaptionSource(given, roots.pop() if len(roots) == 1 else "", _settled(clips))


def _in_lists(rows: CatalogRows) -> list[bool]:
    """Return for each row whether its caption can only be that of a list, since no file has it.

    A row without a caption is in a list too if others of its dataset are, and none has a caption file.
    """
    files = [rows.file(i) for i in range(len(rows))]
    has_file = [isinstance(file, Path) and caption_texts.files_beside(file) != NO_FILES for file in files]
    only_text = [
        isinstance(file, Path) and not there and not none
        for file, there, none in zip(files, has_file, rows.no_caption.tolist(), strict=True)
    ]
    datasets = rows.dataset.to_pylist()
    of_lists = {name for name, text in zip(datasets, only_text, strict=True) if text}
    of_lists -= {name for name, there in zip(datasets, has_file, strict=True) if there}
    return [text or name in of_lists for name, text in zip(datasets, only_text, strict=True)]


def _of_source(given: str, root: str | None) -> CaptionSource:
    source = Source.from_path(given, root=root if is_list(given) else None)
    files, clips = listing.list_source(source), list[tuple[CaptionClip, Unsettled | None]]()
    for i, entry in enumerate(files.entries):
        if source.list_file is None and not formats.may_hold_clips(entry.path):  # each row of a list stays one
            continue
        file = location.below(source.address, entry.path, entry.start, entry.size_bytes, entry.mtime_ns)
        label = f"{source.name}/{entry.path}" + (f"[{entry.clip}]" if entry.clip else "")
        in_list, caption = ("", None) if files.captions is None else (_IN_LIST, files.captions[i].as_py())
        clips.append(_clip(label, source.address, entry, file, caption, in_list=in_list))
    return CaptionSource(given, source.address, _settled(clips), source.list_file, files.kept)


def _settled(clips: Sequence[tuple[CaptionClip, Unsettled | None]]) -> tuple[CaptionClip, ...]:
    """Return clips with their captions."""
    waiting, done = Waiting[int](""), [clip for clip, _ in clips]
    for i, (clip, found) in enumerate(clips):
        if found is not None:
            waiting.add(i, clip.path, found)
    for i, caption, lost in waiting.settled():
        done[i] = replace(done[i], caption=caption, undecoded=lost[0] if lost else "")
    return tuple(done)


def _clip(
    label: str, root: str, entry: SourceFile, file: MediaPath, caption: str | None, *, in_list: str = ""
) -> tuple[CaptionClip, Unsettled | None]:
    """Return a clip with the caption that its files have now, unless an archive has it, or a list, for the reason given.

    Beside it is what was read of a caption that is not decoded yet.
    """
    problem, place, why, unsettled = entry.problem, None, in_list, None
    if not in_list and problem is None and (entry.captions != NO_FILES or isinstance(file, Path)):
        files = caption_texts.files_beside(file) if entry.captions is None else entry.captions
        try:
            found = caption_texts.read(file, files)
            caption, unsettled = (None, found) if isinstance(found, Unsettled) else (found, None)
        except OSError as error:
            problem = error.strerror or str(error)
    if entry.clip:
        why = _RANGE
    elif isinstance(file, location.Location):
        why = _REMOTE if file.start is None else _IN_ARCHIVE
    elif not why:
        place, why = _place(file)
    clip = CaptionClip(
        label, root, entry.path, entry.clip, file, entry.size_bytes, entry.mtime_ns, caption, place, why, problem
    )
    return clip, unsettled


def _place(file: Path) -> tuple[Path | None, str]:
    """Return the caption file to write, or why there is none."""
    files = caption_texts.files_beside(file)
    place = caption_names.file(file, files)
    if len(files.read) > 1:
        names = f"{file.stem}.txt, {file.stem}.1.txt, …"
        return None, f"its captions are in several files, {names}; remove those with a number, or add --list OUT"
    if len(os.fsencode(place.name)) > _LONGEST_NAME:
        return None, "its name is too long for a caption file beside it; shorten it, or add --list OUT"
    return place, ""


def sharing(clips: Sequence[CaptionClip]) -> dict[Path, list[str]]:
    """Return the caption files that several clips have, such as a.mp4 and a.png, with the labels of these."""
    of_file: dict[Path, list[str]] = {}
    for clip in clips:
        if clip.place is not None:
            of_file.setdefault(clip.place, []).append(clip.label)
    return {file: labels for file, labels in of_file.items() if len(labels) > 1}


def each(sources: Sequence[CaptionSource]) -> Iterator[CaptionClip]:
    """Yield the clips of all sources."""
    for source in sources:
        yield from source.clips
