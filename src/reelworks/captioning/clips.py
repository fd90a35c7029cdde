"""Find the clips to caption in folders, lists and catalogs, with the caption that each has and where a new one belongs."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reelworks.catalog import companions, formats, listing, lists, location, remote
from reelworks.catalog.config import Source
from reelworks.catalog.listing import Listing, SourceFile
from reelworks.catalog.location import MediaPath
from reelworks.catalog.store import Catalog
from reelworks.core.errors import UserError

IN_LIST = "its captions are those of a list's column, which files beside the clips do not replace; add --list OUT"
_IN_ARCHIVE = "a member of a tar archive, beside which no file can be written; add --list OUT"
_REMOTE = "at an address, to which no caption is written; add --list OUT"
_RANGE = "a range of a file, whose caption file is that of the whole; add --list OUT"


@dataclass(frozen=True)
class CaptionClip:
    """A clip that may be captioned.

    Attributes:
        label: "dataset/path", with its range, as reports name it.
        root: Folder or address of its dataset.
        path: Path below it.
        range: Text of its range of frames (`catalog.clip_ranges`), "" for a whole file.
        file: Place of the file.
        size_bytes, mtime_ns: Size and time of change as listed.
        caption: The caption that it has, None for none.
        place: The caption file to write; None if only a list can hold its caption.
        why_no_place: Why there is no such file.
        problem: Why it cannot be captioned at all, if that is known already.
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


def find(data: Sequence[str], root: str | None) -> list[CaptionSource]:
    """Return the clips of all data.

    Raises:
        UserError: A folder, list or catalog is missing or damaged, or holds no clips.
    """
    found = [_of_catalog(one) if _is_catalog(one) else _of_source(one, root) for one in data]
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


def _is_catalog(given: str) -> bool:
    return not location.is_url(given) and (Path(given) / "catalog.json").is_file()


def _of_catalog(given: str) -> CaptionSource:
    rows = companions.without(Catalog.open(Path(given)).live())
    clips = []
    for i in range(len(rows)):
        if not formats.may_hold_clips(rows.path[i].as_py()):
            continue
        file, first = rows.file(i), int(rows.first_frame[i])
        problem = None if rows.readable[i] else rows.error[i].as_py()
        text = f"{first}:{first + int(rows.num_frames[i])}" if rows.is_range[i] and problem is None else ""
        entry = SourceFile(rows.path[i].as_py(), int(rows.size_bytes[i]), int(rows.mtime_ns[i]), 0, problem, clip=text)
        caption = rows.caption[i].as_py()
        clips.append(_clip(rows.label(i), rows.root[i].as_py(), entry, file, caption))
    roots = {clip.root for clip in clips}
    if not clips:
        raise UserError(
            "the catalog has no clips", code="no-media", field="DATA", value=given, remedy="scan a folder into it"
        )
    return CaptionSource(given, roots.pop() if len(roots) == 1 else "", tuple(clips))


def _of_source(given: str, root: str | None) -> CaptionSource:
    source = Source.from_path(given, root=root if _is_list(given) else None)
    files = _listing(source)
    in_list = files.captions is not None
    clips = tuple(
        _listed(source, files, i, entry, in_list)
        for i, entry in enumerate(files.entries)
        if source.list_file is not None or formats.may_hold_clips(entry.path)  # each row of a list stays one
    )
    return CaptionSource(given, source.address, clips, source.list_file)


def _is_list(given: str) -> bool:
    return posixpath.splitext(given)[1].lower() in (".csv", ".parquet", ".jsonl")


def _listing(source: Source) -> Listing:
    if source.list_file is not None:
        return lists.read(source)
    if source.url is not None:
        return remote.list_address(source.name, source.url)
    return listing.list_folder(source.name, source.root.resolve())


def _listed(source: Source, files: Listing, number: int, entry: SourceFile, in_list: bool) -> CaptionClip:
    file = location.below(source.address, entry.path, entry.start, entry.size_bytes, entry.mtime_ns)
    frames = f"[{entry.clip}]" if entry.clip else ""
    label = f"{source.name}/{entry.path}{frames}"
    if not in_list:
        return _clip(label, source.address, entry, file, None)
    return _clip(label, source.address, entry, file, files.captions[number].as_py(), in_list=True)


def _clip(
    label: str, root: str, entry: SourceFile, file: MediaPath, caption: str | None, *, in_list: bool = False
) -> CaptionClip:
    """Return a clip with the caption that its files have now, unless a list or an archive has it."""
    problem = entry.problem
    why = (
        _RANGE
        if entry.clip
        else _IN_ARCHIVE
        if entry.start >= 0 or (isinstance(file, location.Location) and file.start is not None)
        else _REMOTE
        if isinstance(file, location.Location)
        else IN_LIST
        if in_list
        else ""
    )
    place = None
    if not in_list and problem is None and (entry.captioned or isinstance(file, Path)):
        try:
            caption = _read(file, entry)
        except OSError as error:
            problem = error.strerror or str(error)
    if not why and isinstance(file, Path):
        place, several = caption_file(file)
        if several:
            place, why = (
                None,
                f"its captions are in several files, {file.stem}.txt, {file.stem}.1.txt, …; remove those with a number, or add --list OUT",
            )
    return CaptionClip(
        label, root, entry.path, entry.clip, file, entry.size_bytes, entry.mtime_ns, caption, place, why, problem
    )


def _read(file: MediaPath, entry: SourceFile) -> str | None:
    if isinstance(file, Path):
        return listing.read(file, _numbered(file) + 1)
    return listing.read(file, entry.captioned, entry.caption)


def _numbered(media: Path) -> int:
    """Count the caption files x.1.txt, x.2.txt, … of x.mp4, of which few clips have any."""
    if not media.with_suffix(f".1{listing.SUFFIX}").exists():
        return 0
    names = {file.name for file in media.parent.iterdir()}
    return max(listing.count_captions(media.stem, names) - 1, 0)


def caption_file(media: Path) -> tuple[Path, bool]:
    """Return the file of a clip's caption, which may not exist yet, and whether it has further ones with numbers."""
    there = [media.with_suffix(suffix) for suffix in listing.SUFFIXES if media.with_suffix(suffix).exists()]
    place = there[0] if there else media.with_suffix(listing.SUFFIX)
    return place, _numbered(media) > 0


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
