"""List the media files of tar archives, such as WebDataset's shards, with the place of each member's bytes.

    shard-0000.tar
        000017.mp4      a clip
        000017.txt      its caption; or 000017.json, with the caption as "caption" or "text"

Members belong together by their path up to the first dot of the name, as in WebDataset.
"""

from __future__ import annotations

import json
import posixpath
import tarfile
from collections import Counter
from typing import BinaryIO, NamedTuple

from reelworks.catalog import formats

CAPTION_SUFFIXES = ("txt", "caption", "json")
CAPTION_KEYS = ("caption", "text")


class Range(NamedTuple):
    """Bytes of an archive."""

    start: int
    size: int
    suffix: str  # of the member that they are


class Member(NamedTuple):
    """A file in an archive."""

    name: str  # path in the archive
    start: int
    size: int
    caption: Range | None
    problem: str | None = None


def members(file: BinaryIO) -> tuple[list[Member], Counter[str]]:
    """List the members of an open archive but for captions and sidecars, which are counted by suffix.

    Raises:
        tarfile.TarError, OSError: The archive is damaged, compressed or cannot be read.
    """
    media, captions, sidecars = [], dict[str, Range](), Counter[str]()
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            if member.isdir():
                continue
            stem, _, suffix = posixpath.basename(member.name).partition(".")
            key, last = posixpath.join(posixpath.dirname(member.name), stem), suffix.rpartition(".")[2].lower()
            if last in CAPTION_SUFFIXES:
                found = captions.get(key)
                if found is None or CAPTION_SUFFIXES.index(last) < CAPTION_SUFFIXES.index(found.suffix):
                    captions[key] = Range(member.offset_data, member.size, last)
            elif formats.is_sidecar(member.name) or last == "cls":  # a class label
                sidecars[f".{last}"] += 1
            else:
                media.append((key, member))
    return [_member(member, captions.get(key)) for key, member in media], sidecars


def _member(member: tarfile.TarInfo, caption: Range | None) -> Member:
    name = posixpath.normpath(member.name)
    if name.startswith(("/", "../")):
        readable = name.lstrip("/").replace("../", "")
        return Member(readable, -1, 0, None, f"the archive names it {member.name!r}, outside of its own folder")
    if any("\udc80" <= letter <= "\udcff" for letter in name):
        readable = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        return Member(readable, -1, 0, None, "file name is not UTF-8")
    if formats.kind_of(name) is None:
        return Member(name, -1, 0, None, formats.why_not_read(name))
    if not member.isreg() or member.issparse():
        return Member(name, -1, 0, None, "not a regular file in the archive")
    return Member(name, member.offset_data, member.size, caption)


def caption_of(data: bytes, suffix: str) -> str | None:
    """Return the caption that a member holds; None if it is JSON without one."""
    text = data.decode("utf-8-sig", errors="replace").strip()
    if suffix != "json":
        return text
    try:
        values = json.loads(text)
    except ValueError:
        return None
    found = (values.get(key) for key in CAPTION_KEYS) if isinstance(values, dict) else ()
    return next((value.strip() for value in found if isinstance(value, str)), None)
