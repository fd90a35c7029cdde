"""Open media files wherever they are: in a folder, in a tar archive, or on a storage.

A member of a tar archive is read in place, as a range of the archive's bytes. A remote file, or the bytes of a
member of a remote archive, is copied to a local cache of bounded size first, since a clip is read to its end anyway.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from reelworks.core import digests, retry, user_files
from reelworks.core.errors import UserError
from reelworks.core.file_cache import FileCache
from reelworks.core.worker_pool import ThreadCalls, WorkerHung
from reelworks.data.media import formats, storages
from reelworks.data.media.formats import archives_of

_LONGEST_SECONDS = 75.0  # of a question to a silent storage
_PIECE_BYTES = 1 << 20
# Of archives of large members, little more than the headers is read; small ones are not worth a request for each.
_LEAST_AHEAD_BYTES, _MOST_AHEAD_BYTES = 1 << 18, 1 << 23


@dataclass(frozen=True)
class Location:
    """A file, or a range of an archive's bytes.

    Attributes:
        file: Path or address of the file or archive.
        name: Path below the dataset's folder, or in the archive, whose suffix tells the kind of file.
        start: First byte of the range; None for a whole file.
        size: Bytes of the range, or of a remote file, 0 if none were told; unused for another whole file.
        version: What a remote file, and a copy of it, is known by, see `storages.version_of`; unused for another local one.
        content: Fingerprint of what was scanned in a remote file; "" if that is not known.
    """

    file: str
    name: str
    start: int | None = None
    size: int = 0
    version: int = 0
    content: str = ""

    def __str__(self) -> str:
        """Return the path with which messages name the clip."""
        file = formats.unsigned(self.file)
        return file if self.start is None else f"{file}/{self.name}"

    @property
    def suffix(self) -> str:
        """Suffix of the file's name, as `Path.suffix`."""
        return PurePosixPath(self.name).suffix

    def with_name(self, name: str) -> Location:
        """Return the location of a file beside it, as `Path.with_name`."""
        assert self.start is None
        file, outer = storages.parted(self.file)
        folder, inside = (path[: path.rfind("/") + 1] for path in (file, self.name))
        return Location(storages.address(folder + outer, name), inside + name)


MediaPath = Path | Location


def below(root: str, path: str, start: int, size: int, version: int, content: str = "") -> MediaPath:
    """Return the place of a catalog's row; `start` is -1 for a file of its own."""
    if start < 0:
        if not storages.is_url(root):
            return Path(root, path)
        return Location(storages.address(root, path), path, None, size, version, content)
    *outer, innermost = archives_of(path)
    archive = next((one for one in outer if _is_file(storages.address(root, one))), innermost)
    return Location(storages.address(root, archive), path[len(archive) + 1 :], start, size, version, content)


def _is_file(file: str) -> bool:
    if not storages.is_url(file):
        return Path(file).is_file()
    with contextlib.suppress(FileNotFoundError):
        return bool(retry.with_retries(lambda: storages.remote_info(*storages.filesystem(file)))["type"] == "file")
    return False


@contextlib.contextmanager
def local(file: MediaPath) -> Iterator[MediaPath]:
    """Give a file on this machine: the file itself, or the copy of a remote one, made if there is none, which stays meanwhile.

    What is raised meanwhile counts for the file if all its bytes can be read.

    Raises:
        ChangedError: The storage has another file in its place.
        OSError: See `storages.reached`; also, as one that may vanish, the storage did not send all its bytes.
    """
    with _copied(file) as path:
        try:
            yield path
        except Exception as error:
            if not (isinstance(error, UserError) or storages.is_of_storage(error)):
                with contextlib.suppress(IsADirectoryError), opened(path) as content:  # parts of a list lie in a folder
                    while content.read(_PIECE_BYTES):
                        pass
            raise


@contextlib.contextmanager
def _copied(file: MediaPath) -> Iterator[MediaPath]:
    if not is_remote(file):
        yield file
        return

    def fetch(target: Path) -> None:
        (fs, path), size = storages.filesystem(file.file), file.size
        if file.start is None:
            storages.asked(fs, path, lambda: fs.get_file(path, str(target)))
        else:
            target.write_bytes(storages.read_range(file.file, file.start, size))
        # Asked after it was read, during which it may have changed, and for what was sent in its place.
        told = storages.version_of(storages.remote_info(fs, path)) if storages.tells_of_one(fs) else -1
        storages.require_all(target.stat().st_size, size)
        copy = Location(str(target), file.name, version=file.version)  # of a long film, blocks are compared
        if (file.content if told < 0 else told != file.version) and fingerprint(copy) != file.content:
            raise storages.ChangedError("the file has changed since it was scanned; scan again")

    with FileCache.from_environment().held(_copy_name(file), fetch) as copy:
        yield Location(str(copy), file.name, version=file.version)


def _copy_name(file: Location) -> str:
    key = digests.of_bytes("\0".join(map(str, (file.file, file.start, file.size, file.version))).encode())
    return key + file.suffix


def is_here(file: MediaPath) -> bool:
    """Return whether a file's bytes are copied to this machine or come from its disk: what hung on them then is a decoder."""
    return (
        FileCache.from_environment().has(_copy_name(file))
        if is_remote(file)
        else _answers(lambda: user_files.require(_path(file)))
    )


def storage_of(file: MediaPath) -> str:
    """Return what a storage is known by: the beginning of an address, or the folder of a local file."""
    if not is_remote(file):
        return str(_path(file).parent)
    first, outer = storages.parted(file.file)
    return outer or "/".join(first.split("/")[:3])


def answers(file: MediaPath) -> bool:
    """Return whether the storage of a file answers: it gives a byte of that remote file, or what a local one was in has files."""
    if is_remote(file):
        return _answers(lambda: storages.read_range(file.file, file.start or 0, 1))
    return _answers(lambda: _require_mounted(_path(file).absolute()))


def _require_mounted(file: Path) -> None:
    """Refuse a file of which nothing is left but an empty folder, or not even that: so it looks where a mount is gone."""
    folder = next((folder for folder in file.parents if folder.is_dir()), file)
    with os.scandir(folder) as entries:
        if next(entries, None) is None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))


def _answers(question: Callable[[], object]) -> bool:
    try:
        ThreadCalls().call(lambda _: question(), None, _LONGEST_SECONDS)
    except WorkerHung:
        return False
    except OSError as error:
        return not storages.is_of_storage(error)
    return True


def is_remote(file: MediaPath) -> TypeGuard[Location]:
    """Return whether a file, or the archive that it is in, is on another machine."""
    return isinstance(file, Location) and storages.is_url(file.file)


def opened(file: MediaPath) -> io.BufferedReader:
    """Open a file, or its range, for reading; a remote one is read in ranges, and not copied. See `user_files.opened`."""
    if is_remote(file):
        size = file.size if file.size or file.start is not None else storages.size_of(file.file)
        return io.BufferedReader(_Range(file.file, file.start or 0, size))
    if isinstance(file, Location) and file.start is not None:
        return io.BufferedReader(_Range(user_files.opened(_path(file), buffering=0), file.start, file.size))
    whole: io.BufferedReader = user_files.opened(_path(file))
    return whole


def read_bytes(file: MediaPath, most: int) -> bytes:
    """Read a file of at most so many bytes, or its range, wherever it is; a remote one is not copied."""
    if isinstance(file, Location) and file.start is not None:
        user_files.require_size(file, file.size, most)
        with opened(file) as content:
            return content.read(file.size)
    if not is_remote(file):
        return user_files.read_bytes(_path(file), most)
    fs, path = storages.filesystem(file.file)
    size = int(storages.listed_info(fs, path).get("size") or 0)  # as it was listed, where it was
    user_files.require_size(file, size, most)
    data = bytes(storages.asked(fs, path, lambda: fs.cat_file(path)))
    if len(data) != size:
        storages.require_all(len(data), storages.remote_info(fs, path).get("size"))
    return data


def num_bytes(file: MediaPath) -> int:
    """Return the size of a local file, or of its range."""
    return file.size if isinstance(file, Location) and file.start is not None else _path(file).stat().st_size


def changed_ns(status: os.stat_result) -> int:
    """Return a file's time of change in nanoseconds; one beyond the year 2262 is that of the last moment of a catalog."""
    return min(max(status.st_mtime_ns, -(2**63)), 2**63 - 1)


def stamp(file: MediaPath) -> tuple[int, int]:
    """Return size and time of change of a local file, or of the archive that it is in."""
    status = _path(file).stat()
    return status.st_size, changed_ns(status)


def fingerprint(file: MediaPath) -> str:
    """Return the fingerprint of a local file's content, or of its range; see `digests.fingerprint`.

    The version of a copy is that of the remote file. A range has none: an archive to which others are added is not another.
    """
    version = None
    if not isinstance(file, Location):
        version = stamp(file)[1]
    elif file.start is None:
        version = file.version
    with opened(file) as content:
        return digests.fingerprint(content, version)


def is_as_scanned(file: MediaPath, size: int, then_ns: int, scanned: str) -> bool:
    """Return whether a file has the size and time of change of its scan, or else that content by its fingerprint.

    A remote file is not asked: only the version or the content that was scanned is ever read.
    """
    if is_remote(file):
        return True
    in_archive, (now_size, now_ns) = isinstance(file, Location) and file.start is not None, stamp(file)
    return (now_ns == then_ns and (in_archive or now_size == size)) or fingerprint(file) == scanned


def is_missing(file: MediaPath) -> bool:
    """Return whether there is no such file on this machine; a remote one is not looked for."""
    return not is_remote(file) and not _path(file).exists()


def ffmpeg_url(file: MediaPath, *, is_open: bool = False) -> str:
    """Return the address by which FFmpeg opens a local file; a range needs its protocol `subfile`.

    Args:
        is_open: Whether the caller has opened the file, which is not looked at again.

    Raises:
        OSError: It is missing, or no regular file, for which FFmpeg might wait without an end.
    """
    if not is_open:
        user_files.require(_path(file))
    path = str(_path(file).absolute())
    if isinstance(file, Location) and file.start is not None:
        return f"subfile,,start,{file.start},end,{file.start + file.size},,:{path}"
    return path


def _path(file: MediaPath) -> Path:
    return Path(file.file) if isinstance(file, Location) else file


class _Range(io.RawIOBase):
    """A range of the bytes of an open file, or of the remote one at an address, as a file."""

    def __init__(self, file: io.FileIO | str, start: int, size: int) -> None:
        self._file, self._start, self._size, self._position = file, start, size, 0
        self._most, self._from, self._ahead = 0, 0, b""  # what the last request asked for, and brought

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(self._size - self._position, 0)]
        if isinstance(self._file, str):
            count = self._copy(self._file, view)
        else:
            self._file.seek(self._start + self._position)
            count = self._file.readinto(view) or 0
        self._position += count
        return count

    def _copy(self, url: str, view: memoryview) -> int:
        """Read into a view what one request has brought; each brings twice as much while little is left out between them."""
        if len(view) and not 0 <= self._position - self._from < len(self._ahead):
            is_near = 0 <= self._position - self._from - len(self._ahead) < _LEAST_AHEAD_BYTES
            most = min(2 * self._most, _MOST_AHEAD_BYTES) if self._ahead and is_near else _LEAST_AHEAD_BYTES
            size = min(max(most, len(view)), self._size - self._position)
            sent = storages.read_range(url, self._start + self._position, size)
            storages.require_all(len(sent), size)
            self._most, self._from, self._ahead = most, self._position, sent
        at = self._position - self._from
        part = self._ahead[at : at + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        if not isinstance(self._file, str):
            self._file.close()
        super().close()
