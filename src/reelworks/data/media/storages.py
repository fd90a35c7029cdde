"""Ask the storages that fsspec knows: what their addresses mean, what they tell of a file, and what their errors say of it.

Credentials and endpoints of a storage are those of its library, such as `AWS_ACCESS_KEY_ID` and `FSSPEC_S3_...`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import threading
import time
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar

from reelworks.core import retry
from reelworks.core.errors import UserError
from reelworks.data.media import formats

T = TypeVar("T")
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_WEB, _S3 = ("http://", "https://"), ("s3", "s3a")
# A chain of fsspec, such as "zip://clips::s3://bucket/a.zip": of the first, which reads files in another, others have no "::".
_CHAIN = re.compile(r"^(zip|tar|dir|libarchive|reference)://.*?::")
_ARCHIVES = ("zip", "tar", "libarchive")
PASSWORD = re.compile(r"([\w+.-]+)://[^/]*:[^/]*@")  # with the name before it
_NO_PASSWORD = ("git", "github")  # but FOLDER:BRANCH@… and OWNER:NAME@…
# What begins the reason why a file is not read if it says nothing about the file.
UNREACHED = "cannot be read now"
_PASSING = (408, 425)  # answers of the web that others follow
_NO_RANGE = 416
_NO_RANGES = "the server sends files as a whole, and no ranges of them, as of an archive: unpack it"
# What is said of a name or a file itself; other errors of reading it are of its storage or this machine, and may pass.
_OF_THE_FILE = frozenset((
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EFBIG, errno.ENOTSUP,
))  # fmt: skip
_SILENT_SECONDS = 15.0  # a client that has heard nothing for this time asks again
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


def make_anew() -> None:
    """Let clients be made anew if variables of the environment, such as endpoint and credentials, changed since they were made."""
    _forget(frozenset(os.environ.items()))


@functools.lru_cache(maxsize=1)
def _forget(_variables: frozenset[tuple[str, str]]) -> None:
    from fsspec import config, registry

    config.set_conf_env(config.conf)  # which fsspec does when it is imported
    for kind in registry.values():
        kind.clear_instance_cache()
    _unpacked.cache_clear()


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
    from fsspec.utils import get_protocol

    make_anew()
    try:
        if _CHAIN.match(url):
            fs, path = _of_chain(url)
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


def _of_chain(url: str) -> tuple[Any, str]:
    """Return the file system of a chain and the path in it; archives stay open, as each member would need the list of all anew."""
    from fsspec.core import url_to_fs

    first, outer = parted(url)
    kind = first.partition(":")[0]
    if kind not in _ARCHIVES:
        return url_to_fs(url)  # type: ignore[no-any-return]
    info = remote_info(*url_to_fs(outer.removeprefix("::")))
    # All that read another kind have one position in it, so that each thread needs its own.
    reader = os.getpid(), 0 if kind == "zip" else threading.get_ident()
    fs = _unpacked(f"{kind}://{outer}", info.get("size"), version_of(info), *reader)
    return fs, str(fs._strip_protocol(first))


@functools.lru_cache(maxsize=16)
def _unpacked(url: str, *_of: int | None) -> Any:
    """Return the file system of an archive, for this version of it, process and thread."""
    from fsspec.core import url_to_fs

    fs, _ = url_to_fs(url)
    fs.ls("")  # makes its list of members, of which other threads would see a part
    return fs


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
        own = conf.get(protocol, {}).get("client_kwargs", {})
        # Of what a server packs for who accepts it, it gives no range, and tells another number of bytes.
        headers = {"Accept-Encoding": "identity"} | own.get("headers", {})
        return {"client_kwargs": {"timeout": timeout, "raise_for_status": _require_range} | own | {"headers": headers}}
    return {}


async def _require_range(answer: Any) -> None:
    """Refuse a part of a file that begins elsewhere than was asked for, as of a cache that takes ranges for one another."""
    asked, sent = answer.request_info.headers.get("Range", ""), answer.headers.get("Content-Range", "")
    first, begins = (re.findall(r"\d+", span)[:1] for span in (asked, sent))
    try:
        _require_no_page(answer.content_type if asked and answer.ok else "")
        if answer.status == 206 and sent and first != begins:
            raise OSError(errno.EIO, f"the server sent {sent!r} where {asked!r} was asked for")
    except OSError:
        answer.close()
        raise


def _require_no_page(kind: str) -> None:
    """Refuse a page in place of a file, as one to sign in, to which a server leads who has no rights any more."""
    if kind in ("text/html", "application/xhtml+xml"):
        raise PermissionError(errno.EACCES, f"the storage refuses it: it sends a page ({kind}), as one to sign in")


def is_web(url: str) -> bool:
    """Return whether an address is that of a web server, which lists no folder."""
    return url.startswith(_WEB)


def require_no_password(url: str) -> None:
    """Refuse an address with a password, which would stand wherever the address does, as in a catalog.

    Raises:
        UserError: It has one.
    """
    if (found := PASSWORD.search(url)) is not None and found[1] not in _NO_PASSWORD:
        options = '"password": "…"'
        if is_web(found[0]):
            options = '"client_kwargs": {"headers": {"Authorization": "Basic …"}}'
        raise UserError(
            "the address holds a password, which catalogs and runs would keep",
            code="password-in-address",
            field="dataset.path",
            value=PASSWORD.sub(r"\1://", url),
            remedy=f"leave it out, and set FSSPEC_{found[1].upper()} to '{{{options}}}' in the environment",
        )


def parted(url: str) -> tuple[str, str]:
    """Return the first address of a chain, and what follows it, with its "::"; "" for an address that is none."""
    chain = _CHAIN.match(url)
    return (url[: chain.end() - 2], url[chain.end() - 2 :]) if chain else (url, "")


def trimmed(folder: str) -> str:
    """Return an address, or a path in a storage, without slashes at its end, but for those that its protocol ends with."""
    return re.sub(r"(?<![:/])/+$", "", folder)


def address(root: str, path: str) -> str:
    """Return the address of a file by its path below another; in those of the web and in chains, signs of a name are encoded."""
    first, outer = parted(root)
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


@functools.cache
def _pace(storage: str) -> retry.Pace:
    return retry.Pace(storage)


def asked(fs: Any, path: str, question: Callable[[], T]) -> T:
    """Return what a storage answers, which is asked at the rate of requests that it allows.

    Raises:
        BusyError: It allows none for longer than is waited.
        OSError: See `reached`.
    """
    name = "/".join(path.split("/")[:3]) if is_web(path) else type(fs).__name__
    return _pace(name)(reached()(question))


def _answer(error: BaseException | None) -> tuple[int, dict[str, str]]:
    """Return status and headers of HTTP that an error of httpx, requests, aiohttp or botocore tells; 0 and none if it does not."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        told = response.get("ResponseMetadata", {})
        return int(told.get("HTTPStatusCode", 0)), told.get("HTTPHeaders", {})
    status = getattr(error, "status", getattr(response, "status_code", 0))
    headers = getattr(error, "headers", getattr(response, "headers", None)) or {}
    return (status if isinstance(status, int) else 0), {name.lower(): text for name, text in headers.items()}


def _meant(error: Exception) -> OSError:
    status, headers = _answer(error if _answer(error)[0] else error.__cause__)
    seconds = retry.asked_seconds(headers)
    # S3 does not say when it may be asked again; s3fs has this number for its "SlowDown".
    if status == 429 or (status == 503 and (seconds is not None or getattr(error, "errno", None) == errno.EBUSY)):
        busy = retry.BusyError(errno.EBUSY, f"the storage limits the rate of requests ({status})")
        busy.seconds = seconds
        return busy
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if isinstance(error, _NOT_UNPACKED):
        return OSError(errno.EINVAL, f"damaged, or packed in a way that is not read: {error}")
    told = error if isinstance(error, OSError) and error.errno in errno.errorcode else None
    # S3's errors have an errno that says less: an expired token is EINVAL, as a range that the file does not have.
    refused = 300 <= status < 500 and status not in (*_PASSING, _NO_RANGE)
    if refused or (isinstance(error, PermissionError) and told is None):
        return PermissionError(errno.EACCES, f"the storage refuses it: {getattr(error, 'strerror', None) or error}")
    return told if told is not None else OSError(errno.EHOSTUNREACH, f"{type(error).__name__}: {error}")


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


def remote_info(fs: Any, path: str) -> dict[str, Any]:
    """Return what a storage tells of a file now, such as its version."""
    fs.invalidate_cache(fs._parent(path))  # what was told before, when the folder was listed
    return listed_info(fs, path)


def listed_info(fs: Any, path: str) -> dict[str, Any]:
    """Return what a storage tells of a file, or has told when its folder was listed."""
    info = dict(asked(fs, path, lambda: _info(fs, path)))
    if is_web(path) and (formats.kind_of(path) or formats.is_archive(path)):
        _require_no_page(info.get("mimetype", ""))
    return info


def _info(fs: Any, path: str, **options: Any) -> Any:
    try:
        return fs.info(path, **options)
    except FileNotFoundError as error:  # which fsspec raises whatever goes wrong on the web, with the cause
        if is_web(path) and error.__cause__ is not None:
            raise error.__cause__ from None
        raise


def size_of(url: str) -> int:
    """Return the size of a file, also where a web server tells it with a range alone, as one that sends files in chunks."""
    fs, path = filesystem(url)
    with_range = {"headers": {"Range": "bytes=0-"}} if is_web(url) else {}
    size = asked(fs, path, lambda: _info(fs, path, **with_range)).get("size")
    if size is None:
        raise OSError(errno.ENOTSUP, _NO_RANGES)
    return int(size)


def tells_of_one(fs: Any) -> bool:
    """Return whether a storage tells of one file without listing others."""
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


def read_range(url: str, start: int, size: int) -> bytes:
    """Return what a storage sends as so many bytes of a file."""
    fs, path = filesystem(url)
    if not is_web(url):
        return bytes(asked(fs, path, lambda: fs.cat_file(path, start=start, end=start + size)))

    def read() -> bytes:
        # Where a server has no ranges, `cat_file` would take all that it sends for the range.
        with fs.open(path, size=start + size, cache_type="none") as file:
            file.seek(start)
            try:
                return bytes(file.read(size))
            except ValueError as error:
                raise OSError(errno.ENOTSUP, _NO_RANGES) from error

    return asked(fs, path, read)


def require_all(sent: int, told: int | None) -> None:
    """Refuse less or more bytes than a storage has told that there are."""
    if told and sent != told:
        raise OSError(errno.EIO, f"the storage sent {sent:,} bytes instead of {told:,}")
