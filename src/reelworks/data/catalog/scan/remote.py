"""List the media files below an address such as `s3://bucket/clips`, and look up single files there."""

from __future__ import annotations

import json
import posixpath
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from reelworks.core import digests, retry, user_files
from reelworks.core.errors import UserError
from reelworks.core.file_cache import FileCache
from reelworks.data.catalog.scan import archive, caption_names
from reelworks.data.catalog.scan.caption_names import AskedNames, CaptionNames
from reelworks.data.catalog.scan.source_files import NO_FILE, Listing, SourceFile, count_sidecar, is_hidden, listing_of
from reelworks.data.media import formats, location, storages
from reelworks.data.media.location import Location, MediaPath

T = TypeVar("T")
# Ends of empty objects that consoles and Hadoop write so that a bucket has a folder.
_FOLDER_MARKERS = ("/", "_$folder$")
_AT_ONCE = 16  # questions to a storage, whose answers take longer to come than to make
_FORMAT = 1  # of the headers that are kept


def list_address(name: str, url: str) -> Listing:
    """List a dataset's media files below an address, in sorted order; hidden files and folders are skipped.

    Raises:
        UserError: The storage cannot be reached, or has no media there.
    """
    sidecars: Counter[str] = Counter()
    return listing_of(name, url, _entries(_Storage(name, url, lists=True), sidecars), sidecars)


class _Storage:
    """Asks a storage for the files below a dataset's address, and again where it does not answer.

    Args:
        lists: Whether it is to list them.
        folders: The only folders that need be listed; None for all that are not hidden.

    Attributes:
        listed: What it lists there, by path; None for a web server that was not asked for that.

    Raises, in all that it does:
        UserError: The storage cannot be reached.
    """

    def __init__(self, name: str, url: str, *, lists: bool, folders: Collection[str] | None = None) -> None:
        self._name, self.url, self._folders = name, url, folders
        try:
            self._fs, self._root = storages.filesystem(url)
        except OSError as error:
            raise self._away(error) from error
        self._asked = retry.Asked()
        self._answered: Callable[[], dict[str, Any]] | None = None  # the last question for a file that had an answer
        self.listed = self._find() if lists else None

    def _find(self) -> dict[str, dict[str, Any]]:
        """List all files, or fail: what a listing leaves out counts as deleted."""
        self._fs.invalidate_cache()
        try:
            if _walks(self._fs):
                found = dict(self._walk(self._root))
            else:
                fs, root = self._fs, self._root
                found = self._ask(
                    lambda: dict(storages.asked(fs, root, lambda: fs.find(root, detail=True, refresh=True)))
                )
        except OSError as error:
            raise self._away(error.__cause__ or error) from error
        below = {full: info for full, info in found.items() if not full.endswith(_FOLDER_MARKERS)}
        read = unquote if storages.is_web(self.url) else str
        return {read(self._below(full)): info for full, info in below.items()}

    def _below(self, full: str) -> str:
        return full.removeprefix(self._root.rstrip("/") + "/")

    def _walk(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for info in self._ask(partial(_inside, self._fs, folder)):
            full = info["name"].rstrip("/")
            if info["type"] != "directory":
                yield info["name"], info
            elif full != folder.rstrip("/") and self._enters(self._below(full)):
                yield from self._walk(full)

    def _enters(self, folder: str) -> bool:
        return not posixpath.basename(folder).startswith(".") if self._folders is None else folder in self._folders

    def info(self, path: str) -> dict[str, Any]:
        """Return what the storage has listed of a file, or what it tells of it if that is more."""
        if self.listed is not None and path not in self.listed:
            raise FileNotFoundError
        listed = (self.listed or {}).get(path)
        if listed and (storages.version_of(listed) >= 0 or not storages.tells_of_one(self._fs)):
            return listed
        question = partial(storages.remote_info, self._fs, storages.address(self._root, path))
        answer = self._ask(question)
        self._answered = question
        return answer

    def has_caption(self, path: str) -> bool:
        """Return whether there is such a file; for what they lack, some web servers send a page, or refuse it."""
        try:
            return self.info(path).get("mimetype") != "text/html"
        except (FileNotFoundError, PermissionError):
            return False
        except OSError as error:
            raise OSError(error.errno, f"its caption {posixpath.basename(path)}: {error.strerror or error}") from error

    def members(self, path: str, sidecars: Counter[str]) -> list[SourceFile] | None:
        """List an archive, or tell why it is not read; None if there is none."""
        try:
            info = self.info(path)
            version, at = storages.version_of(info), storages.address(self.url, path)
            file = Location(at, path, size=int(info.get("size") or 0), version=version)
            return archive.members(path, version, self._ask(lambda: _headers(file)), sidecars)
        except FileNotFoundError:
            return None
        except OSError as error:
            return [SourceFile(path, problem=storages.problem(error))]

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return self._asked(question)
        except OSError as error:
            if (self._asked.is_away or isinstance(error, retry.BusyError)) and not self._answers():
                raise self._away(error) from error
            raise

    def _answers(self) -> bool:
        """Return whether the storage still answers what it has answered before; then it is the files that fail."""
        with suppress(OSError):
            return self._answered is not None and bool(self._asked(self._answered))
        return False

    def _away(self, error: BaseException) -> UserError:
        return UserError(
            f"the storage cannot be read ({type(error).__name__}: {error})",
            code="storage-unreadable",
            field=f"dataset {self._name!r}",
            value=self.url,
            remedy="scan again then; if fewer requests are allowed than there are files, raise the limit, or copy them to a disk"
            if isinstance(error, retry.BusyError)  # a scan asks for each file of a list on the web
            else "check the address, the network and the credentials, such as AWS_ACCESS_KEY_ID",
        )


def _walks(fs: Any) -> bool:
    """Return whether fsspec finds a storage's files by listing one folder after another.

    Without a word it leaves out what is below a folder for which that fails, so that it is done here instead.
    """
    from fsspec.asyn import AsyncFileSystem
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.spec import AbstractFileSystem

    kind = type(fs)
    ways = {kind.find, getattr(kind, "_find", kind.find)}
    return ways <= {AbstractFileSystem.find, AsyncFileSystem._find, DirFileSystem.find, DirFileSystem._find}


def _inside(fs: Any, folder: str) -> list[dict[str, Any]]:
    found = list(storages.asked(fs, folder, lambda: fs.ls(folder, detail=True)))
    # Of a folder that a server of FTP does not list, fsspec gives nothing, which it does not keep.
    if not found and fs.protocol == "ftp" and folder not in fs.dircache:
        raise PermissionError(f"{folder} is not listed")
    return found


def _headers(file: Location) -> archive.ArchiveHeaders:
    """Return the headers of an archive, which are kept for its version if the cache can be written."""

    def read() -> archive.ArchiveHeaders:
        with location.opened(file) as content:
            return archive.read(content)

    def fetch(target: Path) -> None:
        target.write_text(json.dumps(read()), encoding="utf-8")

    cache, contents = FileCache.from_environment(), None
    key = digests.digest_json(["headers", _FORMAT, file.file, file.size, file.version])
    with suppress(UserError), cache.held(f"{key}.json", fetch) as kept:
        with suppress(ValueError, TypeError):  # a copy that a power cut has damaged
            headers, damage = json.loads(kept.read_text(encoding="utf-8"))
            contents = archive.ArchiveHeaders([archive.MemberHeader(*header) for header in headers], damage)
        if contents is None or contents.damage or file.version < 0:  # which may be otherwise the next time
            with suppress(OSError):  # somebody else reads or removes it
                kept.unlink()
    return read() if contents is None else contents


def _entries(storage: _Storage, sidecars: Counter[str]) -> Iterator[SourceFile]:
    names = CaptionNames(storage.listed or ())
    for path in sorted(storage.listed or ()):
        if is_hidden(path):
            continue
        if formats.is_archive(path):
            yield from storage.members(path, sidecars) or ()
        elif formats.is_sidecar(posixpath.basename(path)):
            count_sidecar(path, names, sidecars)
        else:
            yield _file(storage, path, names)


def _file(storage: _Storage, path: str, names: CaptionNames) -> SourceFile:
    problem = None if formats.kind_of(path) else formats.why_not_read(path)
    try:
        info = storage.listed[path] if problem and storage.listed else storage.info(path)
        captions = names.files_of(path)
    except FileNotFoundError:
        return SourceFile(path, problem=NO_FILE)
    except OSError as error:
        return SourceFile(path, problem=storages.problem(error))
    (folder, name), problem = posixpath.split(path), problem or _why_not_in_zip(info)
    for end in captions.read:
        beside = (storage.listed or {}).get(posixpath.join(folder, caption_names.name_of(str(end), name)), {})
        problem = problem or ((why := _why_not_in_zip(beside)) and f"its caption is {why}")
    return SourceFile(path, int(info.get("size") or 0), storages.version_of(info), problem, captions=captions)


def _why_not_in_zip(info: dict[str, Any]) -> str | None:
    """Return why a member of a zip is not read; None if it is, and for files that are in none."""
    if stat.S_ISLNK(info.get("external_attr", 0) >> 16):
        return archive.NOT_REGULAR
    return "encrypted in the archive" if info.get("flag_bits", 0) & 1 else None


def look_up(name: str, url: str, paths: Sequence[str], *, captions: bool) -> list[SourceFile]:
    """Look up the files of a list below an address; a missing one becomes an entry with that problem.

    Storages that can list a folder are asked once for all files, web servers for each, and for its `captions` if these are not in the list.

    Raises:
        UserError: The storage cannot be reached.
    """
    above = (accumulate(folder.split("/"), "{}/{}".format) for folder in {posixpath.dirname(path) for path in paths})
    storage = _Storage(name, url, lists=not storages.is_web(url), folders={*chain.from_iterable(above)})
    archives = archive.Archives(lambda path: storage.members(path, Counter()))
    by_name = captions and storage.listed is None
    names = AskedNames(paths, storage.has_caption) if by_name else CaptionNames(storage.listed or ())

    def entry(path: str) -> SourceFile:
        if formats.kind_of(path) is None:
            return SourceFile(path, problem=formats.why_not_read(path))
        inside = archives.member(path)
        if inside is not None and inside.problem is None:
            return inside
        file = _file(storage, path, names)
        return inside or file if file.problem == NO_FILE else file

    for path in paths:  # so that each archive is read once, and its members are not asked for
        archives.member(path)
    threads = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(threads.map(entry, paths))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def current(file: MediaPath) -> MediaPath:
    """Return a list's location as it is now, so that a changed remote file is not read from an old copy."""
    if not isinstance(file, Location):
        return file
    info = retry.with_retries(lambda: storages.remote_info(*storages.filesystem(file.file)))
    size = int(info.get("size") or 0)
    user_files.require_size(file, size, user_files.LIST)
    return replace(file, size=size, version=storages.version_of(info))
