"""Open media files wherever they are: in a folder, in a tar archive, or on storage that fsspec knows.

A member of a tar archive is read in place, as a range of the archive's bytes. A remote file, or the bytes of a
member of a remote archive, is copied to a local cache of bounded size first, since a clip is read to its end anyway.
Credentials and endpoints of a storage are those of its library, such as `AWS_ACCESS_KEY_ID` and `FSSPEC_S3_...`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import re
import time
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from reelworks.core import digests, retry, user_files
from reelworks.core.errors import UserError
from reelworks.core.file_cache import FileCache
from reelworks.core.worker_pool import ThreadCalls, WorkerHung
from reelworks.data.media.formats import archives_of

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_WEB, _S3 = ("http://", "https://"), ("s3", "s3a")
# A chain of fsspec, such as "zip://clips::s3://bucket/a.zip": of the first, which reads files in another, others have no "::".
_CHAIN = re.compile(r"^(zip|tar|dir|libarchive|reference)://.*?::")
# What begins the reason why a file is not read if it says nothing about the file.
UNREACHED = "cannot be read now"
_BUSY = (408, 425, 429)  # answers of the web that others follow
_NO_RANGE = 416
# What is said of a name or a file itself; other errors of reading it are of its storage or this machine, and may pass.
_OF_THE_FILE = frozenset((
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EFBIG, errno.ENOTSUP,
))  # fmt: skip
# A client that has heard nothing for this time asks again; a question to a silent storage lasts for this time at most.
_SILENT_SECONDS, _LONGEST_SECONDS = 15.0, 75.0
_PIECE_BYTES = 1 << 20
# Of archives of large members, little more than the headers is read; small ones are not worth a request for each.
_LEAST_AHEAD_BYTES, _MOST_AHEAD_BYTES = 1 << 18, 1 << 23
# What storages call the hash of a file's content, or else the time of its last change. On the web, where the time is called
# Last-Modified, an ETag may be of the server rather than of the file, as one of inodes, and differ between those of one name.
_KNOWN_BY = (
    *("Last-Modified", "ETag", "etag", "blob_id", "md5Hash", "md5Checksum", "oid", "sha", "Content-MD5", "Digest"),
    *("LastModified", "last_modified", "mtime", "updated", "modified", "modify", "modificationTime"),
    *("last_write_time", "created"),
)
# Those that tell of one file by one request, or none; others list the whole folder for it.
_TELL_OF_ONE = frozenset(("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory", "zip"))
# What is raised of files that are packed in another one.
_NOT_UNPACKED = (zipfile.BadZipFile, zlib.error, NotImplementedError)


class ChangedError(OSError):
    """A remote file is no longer the one that was listed."""


def is_url(text: str) -> bool:
    """Return whether a text is an address such as `s3://bucket/clips` rather than a local path."""
    return bool(_URL.match(text))


def filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of an address and the path in it.

    Raises:
        UserError: fsspec does not know the protocol, or its library is not installed.
        OSError: The zip that the files are in is damaged.
    """
    import fsspec  # slow to import, and only remote files need it
    from fsspec.core import url_to_fs
    from fsspec.utils import get_protocol

    try:
        if _CHAIN.match(url):
            fs, path = url_to_fs(url)
            return fs, urllib.parse.unquote(path)
        protocol = get_protocol(url)
        kind = fsspec.get_filesystem_class(protocol)
        # Not by `url_to_fs`, to which "::" in a name leads to another file system.
        fs = fsspec.filesystem(protocol, **_limits(protocol), **kind._get_kwargs_from_urls(url))
        if protocol in _S3:
            fs.retries = 2  # otherwise five times, and five times each of these
        return fs, str(kind._strip_protocol(url))
    except ImportError as error:
        extra = {"s3": "'reelworks[s3]'", "s3a": "'reelworks[s3]'", "http": "aiohttp", "https": "aiohttp"}
        package = extra.get(get_protocol(url))
        raise UserError(
            f"addresses of this kind need a library that is not installed ({error})",
            code="storage-library-missing",
            field="dataset.path",
            value=url,
            remedy=f"pip install {package}" if package else "install the library that the message names",
        ) from error
    except _NOT_UNPACKED as error:
        raise _meant(error) from error
    except ValueError as error:
        raise UserError(
            f"not an address that fsspec knows ({error})",
            code="storage-address-invalid",
            field="dataset.path",
            value=url,
            remedy='give a folder, or an address such as "s3://bucket/clips" or "hf://datasets/user/name"',
        ) from error


def _limits(protocol: str) -> dict[str, Any]:
    """Return options by which a client ends a question to a silent storage after a minute; others have limits of their own."""
    from fsspec.config import conf

    # botocore would ask five times for each time of s3fs, after 15 s each.
    if protocol in _S3 and not {"AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"} & os.environ.keys():
        return {
            "config_kwargs": {"retries": {"total_max_attempts": 1}} | conf.get(protocol, {}).get("config_kwargs", {})
        }
    if protocol in ("http", "https"):
        from aiohttp import ClientTimeout

        timeout = ClientTimeout(total=None, sock_connect=_SILENT_SECONDS, sock_read=_SILENT_SECONDS)
        ours = {"timeout": timeout, "raise_for_status": _require_range}
        return {"client_kwargs": ours | conf.get(protocol, {}).get("client_kwargs", {})}
    return {}


async def _require_range(answer: Any) -> None:
    """Refuse a part of a file that begins elsewhere than was asked for, as of a cache that takes ranges for one another."""
    asked, sent = answer.request_info.headers.get("Range", ""), answer.headers.get("Content-Range", "")
    first, begins = (re.findall(r"\d+", span)[:1] for span in (asked, sent))
    if answer.status == 206 and sent and first != begins:
        answer.close()
        raise OSError(errno.EIO, f"the server sent {sent!r} where {asked!r} was asked for")


def is_web(url: str) -> bool:
    """Return whether an address is that of a web server, which lists no folder."""
    return url.startswith(_WEB)


def _parted(url: str) -> tuple[str, str]:
    """Return the first address of a chain, and what follows it, with its "::"; "" for an address that is none."""
    chain = _CHAIN.match(url)
    return (url[: chain.end() - 2], url[chain.end() - 2 :]) if chain else (url, "")


def trimmed(folder: str) -> str:
    """Return an address, or a path in a storage, without slashes at its end, but for those that its protocol ends with."""
    return re.sub(r"(?<![:/])/+$", "", folder)


def address(root: str, path: str) -> str:
    """Return the address of a file by its path below another; in those of the web and in chains, signs of a name are encoded."""
    first, outer = _parted(root)
    folder, name = trimmed(first), urllib.parse.quote(path) if outer or is_web(root) else path
    return f"{folder}{'' if folder.endswith('/') else '/'}{name}{outer}"


@contextlib.contextmanager
def reached() -> Iterator[None]:
    """Raise what libraries of storages raise, in their own ways, as the `OSError` that it means.

    Raises:
        FileNotFoundError: The storage has no such file.
        PermissionError: It does not give it, as to somebody whose rights have ended.
        OSError: See `is_of_storage`; if `retry.is_transient`, it does not answer, or cannot now.
    """
    try:
        yield
    except Exception as error:
        if (meant := _meant(error)) is error:
            raise
        raise meant from error


def _status(error: BaseException | None) -> int:
    """Return the status of HTTP that an error of httpx, requests, aiohttp or botocore tells, or 0."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    status = getattr(error, "status", getattr(response, "status_code", 0))
    return status if isinstance(status, int) else 0


def _meant(error: Exception) -> OSError:
    status = _status(error) or _status(error.__cause__)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if isinstance(error, _NOT_UNPACKED):
        return OSError(errno.EINVAL, f"damaged, or packed in a way that is not read: {error}")
    told = error if isinstance(error, OSError) and error.errno in errno.errorcode else None
    # S3's errors have an errno that says less: an expired token is EINVAL, as a range that the file does not have.
    refused = 300 <= status < 500 and status not in (*_BUSY, _NO_RANGE)
    if refused or (isinstance(error, PermissionError) and told is None):
        return PermissionError(errno.EACCES, f"the storage refuses it: {getattr(error, 'strerror', None) or error}")
    if told is not None:
        return told
    return OSError(errno.EHOSTUNREACH, f"{type(error).__name__}: {error}")


def problem(error: OSError) -> str:
    """Return why a file is not read, which begins with `UNREACHED` if the reason says nothing about what it is now."""
    is_unread = isinstance(error, ChangedError) or is_of_storage(error)
    return f"{UNREACHED if is_unread else 'cannot be read'}: {error.strerror or error}"


def is_of_storage(error: BaseException) -> bool:
    """Return whether an error of reading a file says nothing about it, but of its storage or this machine, as by its errno.

    Who raises another error in its place keeps the errno. What PyAV raises is said of the content, whatever its errno.
    """
    if not isinstance(error, OSError) or type(error).__module__.startswith("av."):
        return False
    return error.errno in errno.errorcode and error.errno not in _OF_THE_FILE


@dataclass(frozen=True)
class Location:
    """A file, or a range of an archive's bytes.

    Attributes:
        file: Path or address of the file or archive.
        name: Path below the dataset's folder, or in the archive, whose suffix tells the kind of file.
        start: First byte of the range; None for a whole file.
        size: Bytes of the range, or of a remote file, 0 if none were told; unused for another whole file.
        version: What a remote file, and a copy of it, is known by, see `version_of`; unused for another local one.
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
        return self.file if self.start is None else f"{self.file}/{self.name}"

    @property
    def suffix(self) -> str:
        """Suffix of the file's name, as `Path.suffix`."""
        return PurePosixPath(self.name).suffix

    def with_name(self, name: str) -> Location:
        """Return the location of a file beside it, as `Path.with_name`."""
        assert self.start is None
        file, outer = _parted(self.file)
        folder, inside = (path[: path.rfind("/") + 1] for path in (file, self.name))
        return Location(address(folder + outer, name), inside + name)


MediaPath = Path | Location


def below(root: str, path: str, start: int, size: int, version: int, content: str = "") -> MediaPath:
    """Return the place of a catalog's row; `start` is -1 for a file of its own."""
    if start < 0:
        return Location(address(root, path), path, None, size, version, content) if is_url(root) else Path(root, path)
    *outer, innermost = archives_of(path)
    archive = next((one for one in outer if _is_file(address(root, one))), innermost)
    return Location(address(root, archive), path[len(archive) + 1 :], start, size, version, content)


def _is_file(file: str) -> bool:
    if not is_url(file):
        return Path(file).is_file()
    with contextlib.suppress(FileNotFoundError):
        return bool(retry.with_retries(lambda: remote_info(*filesystem(file)))["type"] == "file")
    return False


def tells_more(fs: Any, listed: dict[str, Any]) -> bool:
    """Return whether a storage tells of one file what makes it the same one, and has not listed that."""
    return version_of(listed) < 0 and _tells_of_one(fs)


def remote_info(fs: Any, path: str) -> dict[str, Any]:
    """Return what a storage tells of a file now, such as its version."""
    with reached():
        fs.invalidate_cache(fs._parent(path))  # what was told before, when the folder was listed
    return _told(fs, path)


def _told(fs: Any, path: str) -> dict[str, Any]:
    with reached():
        try:
            return dict(fs.info(path))
        except FileNotFoundError as error:  # which fsspec raises whatever goes wrong on the web, with the cause
            if is_web(path) and error.__cause__ is not None:
                raise error.__cause__ from None
            raise


def _tells_of_one(fs: Any) -> bool:
    return not _TELL_OF_ONE.isdisjoint((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def version_of(info: dict[str, Any]) -> int:
    """Return what makes a remote file the same one: a number of its hash or time of change, negative if neither is told.

    The negative one is that of the moment: whatever was listed, read or copied before is then of another version.
    Of two files of the same size, without a hash, whose times the storage rounds to the same second, it tells no difference.
    """
    told = (info[key] for key in _KNOWN_BY if info.get(key))
    known = (info["CRC"], info["date_time"]) if "CRC" in info else next(told, None)
    if known is None:
        return -time.time_ns()
    if isinstance(known, datetime):
        known = known.timestamp()
    if isinstance(known, int | float):
        return int(known * 1e9)
    text = str(known).strip('"')  # some storages put quotes around a hash, and none where they list it
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


@contextlib.contextmanager
def local(file: MediaPath) -> Iterator[MediaPath]:
    """Give a file on this machine: the file itself, or the copy of a remote one, made if there is none, which stays meanwhile.

    What is raised meanwhile counts for the file if all its bytes can be read.

    Raises:
        ChangedError: The storage has another file in its place.
        OSError: See `reached`; also, as one that may vanish, the storage did not send all its bytes.
    """
    with _copied(file) as path:
        try:
            yield path
        except Exception as error:
            if not (isinstance(error, UserError) or is_of_storage(error)):
                with opened(path) as content:
                    while content.read(_PIECE_BYTES):
                        pass
            raise


@contextlib.contextmanager
def _copied(file: MediaPath) -> Iterator[MediaPath]:
    if not is_remote(file):
        yield file
        return

    def fetch(target: Path) -> None:
        (fs, path), size = filesystem(file.file), file.size
        with reached():
            if file.start is None:
                fs.get_file(path, str(target))
            else:
                target.write_bytes(_range(file.file, file.start, size))
        _require_all(target.stat().st_size, size)
        # Asked after it was read, during which it may have changed.
        told = version_of(remote_info(fs, path)) if _tells_of_one(fs) else -1
        copy = Location(str(target), file.name, version=told if told >= 0 else file.version)
        if (file.content if told < 0 else told != file.version) and fingerprint(copy) != file.content:
            raise ChangedError("the file has changed since it was scanned; scan again")

    with cache().held(_copy_name(file), fetch) as copy:
        yield Location(str(copy), file.name, version=file.version)


def _copy_name(file: Location) -> str:
    key = digests.of_bytes("\0".join(map(str, (file.file, file.start, file.size, file.version))).encode())
    return key + file.suffix


def is_here(file: MediaPath) -> bool:
    """Return whether a file's bytes are copied to this machine or come from its disk: what hung on them then is a decoder."""
    if is_remote(file):
        return cache().has(_copy_name(file))
    return _answers(lambda: user_files.require(_path(file)))


def storage_of(file: MediaPath) -> str:
    """Return what a storage is known by: the beginning of an address, or the folder of a local file."""
    if not is_remote(file):
        return str(_path(file).parent)
    first, outer = _parted(file.file)
    return outer or "/".join(first.split("/")[:3])


def answers(file: MediaPath) -> bool:
    """Return whether the storage of a file answers: it gives a byte of that remote file, or lists the folder of a local one."""
    if is_remote(file):
        return _answers(lambda: _range(file.file, file.start or 0, 1))
    return _answers(lambda: next(os.scandir(storage_of(file)), None))


def _answers(question: Callable[[], object]) -> bool:
    try:
        ThreadCalls().call(lambda _: question(), None, _LONGEST_SECONDS)
    except WorkerHung:
        return False
    except OSError as error:
        return not is_of_storage(error)
    return True


def is_remote(file: MediaPath) -> TypeGuard[Location]:
    """Return whether a file, or the archive that it is in, is on another machine."""
    return isinstance(file, Location) and is_url(file.file)


def _range(url: str, start: int, size: int) -> bytes:
    """Return what a storage sends as so many bytes of a file."""
    fs, path = filesystem(url)
    with reached():
        if not is_web(url):
            return bytes(fs.cat_file(path, start=start, end=start + size))
        # Where a server has no ranges, `cat_file` would take all that it sends for the range.
        with fs.open(path, size=start + size, cache_type="none") as file:
            file.seek(start)
            try:
                return bytes(file.read(size))
            except ValueError as error:
                text = "the server sends files as a whole, and no ranges of them, as of an archive: unpack it"
                raise OSError(errno.ENOTSUP, text) from error


def _require_all(sent: int, told: int | None) -> None:
    if told and sent != told:
        raise OSError(errno.EIO, f"the storage sent {sent:,} bytes instead of {told:,}")


def opened(file: MediaPath) -> io.BufferedReader:
    """Open a file, or its range, for reading; a remote one is read in ranges, and not copied. See `user_files.opened`."""
    if is_remote(file):
        return io.BufferedReader(_Range(file.file, file.start or 0, file.size))
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
    fs, path = filesystem(file.file)
    size = int(_told(fs, path).get("size") or 0)  # as it was listed, where it was
    user_files.require_size(file, size, most)
    with reached():
        data = bytes(fs.cat_file(path))
    if len(data) != size:
        _require_all(len(data), remote_info(fs, path).get("size"))
    return data


def num_bytes(file: MediaPath) -> int:
    """Return the size of a local file, or of its range."""
    if isinstance(file, Location) and file.start is not None:
        return file.size
    return _path(file).stat().st_size


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
    in_archive = isinstance(file, Location) and file.start is not None
    version = None if in_archive else file.version if isinstance(file, Location) else stamp(file)[1]
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
            sent = _range(url, self._start + self._position, size)
            _require_all(len(sent), size)
            self._most, self._from, self._ahead = most, self._position, sent
        at = self._position - self._from
        part = self._ahead[at : at + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        if not isinstance(self._file, str):
            self._file.close()
        super().close()


@functools.cache
def cache() -> FileCache:
    """Return the copies of remote files on this machine."""
    return FileCache.from_environment()
