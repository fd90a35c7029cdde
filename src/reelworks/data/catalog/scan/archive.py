"""List the media files of tar archives, such as WebDataset's shards, with the place of each member's bytes.

    shard-0000.tar
        000017.mp4      a clip
        000017.txt      its caption; or 000017.json, with the caption as one of `list_columns.CAPTION_NAMES`

A caption belongs to the clip of the same name as in a folder (`caption_names`). Where a clip has none, WebDataset's rule
counts, by which members belong together by their path up to the first dot of the name: if only one clip and one caption
have it.
"""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from reelworks.core import user_files
from reelworks.data.catalog.scan.caption_names import SUFFIXES, CaptionFiles, CaptionNames, Range
from reelworks.data.catalog.scan.source_files import NO_FILE, SourceFile
from reelworks.data.media import formats, location, storages

NOT_REGULAR = "not a regular file in the archive"
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zX", b"\x28\xb5\x2f\xfd")  # beginnings of gzip, bzip2, xz and zstd
_MOST_OF_HEADER = 1 << 20  # bytes of a long name, or of the attributes of one member


class _Headers:
    """An archive from which only headers are read: one that states a size of gigabytes, or below 0, is damaged."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int) -> bytes:
        """Read so many bytes."""
        if not 0 <= size <= _MOST_OF_HEADER:
            raise tarfile.ReadError(f"a header has {size:,} bytes")
        return self._file.read(size)


def list_archive(path: str, file: Path, sidecars: Counter[str] | None = None) -> Iterator[SourceFile]:
    """Yield the media members of an archive on this machine, or itself with the reason why it cannot be read."""
    try:
        with user_files.opened(file) as opened:
            changed_ns = location.changed_ns(os.fstat(opened.fileno()))
            yield from members(path, changed_ns, read(opened), Counter() if sidecars is None else sidecars)
    except OSError as error:
        yield SourceFile(path, problem=storages.problem(error))


class MemberHeader(NamedTuple):
    """Header of a member, without what is not read of it."""

    name: str
    size: int
    start: int  # first byte of its content in the archive
    kind: str  # "file", "folder", "link" to the content of another member, or "" for what is not read
    link: str  # name of that member


class ArchiveHeaders(NamedTuple):
    """The headers of an archive, and why what follows them is not read; "" if it is read to its end."""

    headers: list[MemberHeader]
    damage: str = ""


def _header(member: tarfile.TarInfo) -> MemberHeader:
    kinds = {"file": member.isreg() and not member.issparse(), "folder": member.isdir(), "link": member.islnk()}
    kind = next((name for name, is_so in kinds.items() if is_so), "")
    return MemberHeader(member.name, member.size, member.offset_data, kind, member.linkname)


def read(file: BinaryIO) -> ArchiveHeaders:
    """Read the headers of an open archive.

    Raises:
        OSError: It cannot be read.
    """
    found = list[MemberHeader]()
    try:
        found.extend(map(_header, _headers(file)))  # keeps those before an error
    except OSError:
        raise
    except Exception as error:  # tarfile raises nearly anything on odd headers
        is_told = isinstance(error, tarfile.TarError)
        reason = str(error) if is_told else f"a header is damaged ({type(error).__name__}: {error})"
        if not found and file.seek(0) == 0 and file.read(4).startswith(COMPRESSED):
            reason = "it is compressed, so clips cannot be read in place; unpack it"
        what = f"damaged, and not read behind {found[-1].name!r}" if found else "not a tar archive"
        return ArchiveHeaders(found, f"{what}: {reason}")
    return ArchiveHeaders(found)


def _headers(file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of an archive, and raise for what follows them but its end, where tarfile stops without a word."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    headers: Any = _Headers(file)
    with tarfile.open(fileobj=headers, mode="r:") as archive:
        for member in archive:
            if member.size < 0 or (
                not member.issparse() and member.isreg() and member.offset_data + member.size > size
            ):
                raise tarfile.ReadError(f"{member.name!r} has {member.size:,} bytes by its header, which are not there")
            yield member
        file.seek(end := archive.offset)
        if any(first := file.read(tarfile.BLOCKSIZE)):
            raise tarfile.ReadError(f"the header at byte {end:,} is damaged")
        if len(first) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError(f"it ends at byte {size:,} without the mark of its end, as if it was cut off")
        if any(any(block) for block in iter(partial(file.read, _MOST_OF_HEADER), b"")):
            raise tarfile.ReadError(
                f"behind its end at byte {end:,}, there is another archive, or the rest of this one"
            )


def members(archive_path: str, changed_ns: int, contents: ArchiveHeaders, sidecars: Counter[str]) -> list[SourceFile]:
    """List the media members of an archive, and the archive itself with the reason why what follows them is not read.

    Sidecars are counted by suffix. Of members of the same name, the last one counts, as where the archive is unpacked.
    """
    folders, order = dict[str, dict[str, MemberHeader]](), dict[str, MemberHeader]()
    contents_of = dict[str, MemberHeader]()
    for each in contents.headers:
        folder, name = posixpath.split(path := posixpath.normpath(each.name))
        # A hard link has the content that the member it names had until then.
        member = contents_of.get(posixpath.normpath(each.link), each) if each.kind == "link" else each
        contents_of[path] = member
        if member.kind == "folder":
            continue
        suffix = formats.extension_of(name)
        if suffix in SUFFIXES:
            folders.setdefault(folder, {})[name] = member
        elif formats.is_sidecar(name) or suffix == ".cls":  # a class label
            sidecars[suffix] += 1
        else:
            order.pop(path, None)
            order[path] = folders.setdefault(folder, {})[name] = member
    captions = {folder: _Captions(inside) for folder, inside in folders.items()}
    listed = (_member(path, member, captions) for path, member in order.items())
    damage = [SourceFile(archive_path, problem=contents.damage)] if contents.damage else []
    return [one._replace(path=f"{archive_path}/{one.path}", mtime_ns=changed_ns) for one in listed] + damage


class _Captions:
    """The captions in one folder of an archive."""

    def __init__(self, members: dict[str, MemberHeader]) -> None:
        self._members, self._names = members, CaptionNames(members)
        self._clips, self._captions = Counter[str](), dict[str, set[str]]()
        for name in members:
            key, _, rest = name.partition(".")
            if formats.extension_of(name) in SUFFIXES:
                self._captions.setdefault(key, set()).add(rest.rpartition(".")[0])
            else:
                self._clips[key] += 1
        self._first = {key: min(rests) for key, rests in self._captions.items()}

    def files_of(self, clip: str) -> CaptionFiles:
        """Return the captions of a clip, given its name."""
        read, rivals = self._names.find(clip)
        key = clip.partition(".")[0]
        if read or key not in self._captions:
            return CaptionFiles(tuple(map(self._range, read)), tuple(map(self._range, rivals)))
        base = f"{key}.{rest}" if (rest := self._first[key]) else key
        if len(self._captions[key]) > 1 or self._clips[key] > 1:
            return CaptionFiles(unclear=base)
        return CaptionFiles(tuple(map(self._range, self._names.named(base)[:1])))

    def _range(self, name: str) -> Range:
        member = self._members[name]
        return Range(member.start if member.kind == "file" else -1, member.size, name)


def _member(name: str, member: MemberHeader, captions: dict[str, _Captions]) -> SourceFile:
    if name == ".." or name.startswith(("/", "../")):
        readable = name.lstrip("/").replace("../", "")
        return SourceFile(readable, problem=f"the archive names it {member.name!r}, outside of its own folder")
    if formats.kind_of(name) is None and not formats.is_sound(name):
        return SourceFile(name, problem=formats.why_not_read(name))
    if member.kind != "file":
        return SourceFile(name, problem=NOT_REGULAR)
    if formats.is_sound(name):
        return SourceFile(name, member.size, 0, formats.why_not_read(name), member.start)
    found = captions[posixpath.dirname(name)].files_of(posixpath.basename(name))
    if any(isinstance(one, Range) and one.start < 0 for one in (*found.read, *found.rivals)):
        return SourceFile(name, problem=f"its caption is {NOT_REGULAR}")
    return SourceFile(name, member.size, start=member.start, captions=found)


class Archives:
    """The tar archives whose members a list names, each of which is read once.

    Args:
        members: Returns the members of the archive at a path, named as in a listing of its folder; None if there is none.
    """

    def __init__(self, members: Callable[[str], list[SourceFile] | None]) -> None:
        self._members, self._found = members, dict[str, dict[str, SourceFile] | None]()

    def member(self, path: str) -> SourceFile | None:
        """Return a file such as "shard.tar/0001.mp4", None if it is in no archive."""
        for archive in formats.archives_of(path):
            if archive not in self._found:
                inside = self._members(archive)
                self._found[archive] = None if inside is None else {file.path: file for file in inside}
            if (found := self._found[archive]) is not None:
                whole = found.get(archive)  # of which no member can be read
                return found.get(path) or SourceFile(path, problem=NO_FILE if whole is None else whole.problem)
        return None
