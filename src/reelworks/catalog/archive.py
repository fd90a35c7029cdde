"""List the media files of tar archives, such as WebDataset's shards, with the place of each member's bytes.

    shard-0000.tar
        000017.mp4      a clip
        000017.txt      its caption; or 000017.json, with the caption as "caption" or "text"

Members belong together by their path up to the first dot of the name, as in WebDataset.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections import Counter
from typing import Any, BinaryIO, NamedTuple

from reelworks.catalog import formats
from reelworks.core import user_files

CAPTION_SUFFIXES = ("txt", "caption", "json")
CAPTION_KEYS = ("caption", "text")
_MOST_OF_HEADER = 1 << 20  # bytes of a long name, or of the attributes of one member


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


class _Headers:
    """An archive from which only headers are read: one that states a size of gigabytes, or below 0, is damaged."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int) -> bytes:
        """Read so many bytes."""
        if not 0 <= size <= _MOST_OF_HEADER:
            raise tarfile.ReadError(f"a header has {size:,} bytes")
        return self._file.read(size)


def members(file: BinaryIO) -> tuple[list[Member], Counter[str]]:
    """List the members of an open archive but for captions and sidecars, which are counted by suffix.

    Of members of the same name, the last one counts, as where the archive is unpacked.

    Raises:
        tarfile.TarError, OSError: The archive is damaged, compressed or cannot be read.
    """
    try:
        return _members(file)
    except (tarfile.TarError, OSError):
        raise
    except Exception as error:  # tarfile raises nearly anything on odd headers
        raise tarfile.ReadError(f"a header is damaged ({type(error).__name__}: {error})") from error


def _members(file: BinaryIO) -> tuple[list[Member], Counter[str]]:
    media, captions, sidecars = dict[str, tuple[str, tarfile.TarInfo]](), dict[str, Range](), Counter[str]()
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    headers: Any = _Headers(file)
    with tarfile.open(fileobj=headers, mode="r:") as archive:
        for member in archive:
            if member.size < 0 or (
                not member.issparse() and member.isreg() and member.offset_data + member.size > size
            ):
                raise tarfile.ReadError(f"{member.name!r} has {member.size:,} bytes by its header, which are not there")
            if member.isdir():
                continue
            stem, _, suffix = posixpath.basename(member.name).partition(".")
            key, last = posixpath.join(posixpath.dirname(member.name), stem), suffix.rpartition(".")[2].lower()
            if last in CAPTION_SUFFIXES:
                found = captions.get(key)
                if found is None or CAPTION_SUFFIXES.index(last) <= CAPTION_SUFFIXES.index(found.suffix):
                    is_whole = member.isreg() and not member.issparse()
                    captions[key] = Range(member.offset_data if is_whole else -1, member.size, last)
            elif formats.is_sidecar(member.name) or last == "cls":  # a class label
                sidecars[f".{last}"] += 1
            else:
                media.pop(name := posixpath.normpath(member.name), None)
                media[name] = (key, member)
    return [_member(member, captions.get(key)) for key, member in media.values()], sidecars


def _member(member: tarfile.TarInfo, caption: Range | None) -> Member:
    name = posixpath.normpath(member.name)
    if name == ".." or name.startswith(("/", "../")):
        readable = name.lstrip("/").replace("../", "")
        return Member(readable, -1, 0, None, f"the archive names it {member.name!r}, outside of its own folder")
    if any("\udc80" <= letter <= "\udcff" for letter in name):
        readable = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        return Member(readable, -1, 0, None, "file name is not UTF-8")
    if formats.kind_of(name) is None:
        return Member(name, -1, 0, None, formats.why_not_read(name))
    if not member.isreg() or member.issparse():
        return Member(name, -1, 0, None, "not a regular file in the archive")
    if caption is not None and caption.start < 0:
        return Member(name, -1, 0, None, "its caption is not a regular file in the archive")
    return Member(name, member.offset_data, member.size, caption)


def caption_of(data: bytes, suffix: str) -> str | None:
    """Return the caption that a member holds; None if it is JSON without one."""
    text = data.decode("utf-8-sig", errors="replace").strip()
    if suffix != "json":
        return text
    try:
        values = user_files.parse_json(text)
    except ValueError:
        return None
    found = (values.get(key) for key in CAPTION_KEYS) if isinstance(values, dict) else ()
    return next((value.strip() for value in found if isinstance(value, str)), None)
