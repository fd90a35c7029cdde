"""List the media files below an address such as `s3://bucket/clips`, and look up single files there."""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from reelworks.core import digests, user_files
from reelworks.core.errors import UserError
from reelworks.core.file_cache import FileCache
from reelworks.data.catalog.scan import archive
from reelworks.data.catalog.scan.caption_names import SUFFIXES, CaptionNames
from reelworks.data.catalog.scan.source_files import (
    NO_FILE,
    Listing,
    SourceFile,
    count_text,
    extension_of,
    is_hidden,
    may_be_read,
    settled,
)
from reelworks.data.media import formats, location
from reelworks.data.media.location import Location, MediaPath

# Ends of empty objects that consoles and Hadoop write so that a bucket has a folder.
_FOLDER_MARKERS = ("/", "_$folder$")
_READ_AHEAD_BYTES = 1 << 18
_AT_ONCE = 16  # questions to a storage, whose answers take longer to come than to make


def list_address(name: str, url: str) -> Listing:
    """List a dataset's media files below an address, in sorted order; hidden files and folders are skipped.

    Raises:
        UserError: The storage cannot be reached, or has no media there.
    """
    fs, root = location.filesystem(url)
    sidecars: Counter[str] = Counter()
    entries = settled(_entries(fs, root, _find(fs, root, name, url), sidecars), name)
    if not any(may_be_read(entry) for entry in entries):
        found = sidecars + Counter(extension_of(entry.path) for entry in entries)
        raise UserError(
            f"there are no videos or pictures below the address; there are: {count_text(found) or 'no files'}",
            code="no-media",
            field=f"dataset {name!r}",
            value=url,
            remedy=f"give an address below which there are files of the types {' '.join(sorted(formats.EXTENSIONS))}",
        )
    return Listing(entries, note=f"{url}: files beside the clips: {count_text(sidecars)}" if sidecars else None)


def _find(fs: Any, root: str, name: str, url: str) -> dict[str, dict[str, Any]]:
    try:
        found: dict[str, dict[str, Any]] = fs.find(root, detail=True, refresh=True)
    except Exception as error:  # libraries of storages raise errors of their own
        raise UserError(
            f"the storage cannot be read ({type(error).__name__}: {error})",
            code="storage-unreadable",
            field=f"dataset {name!r}",
            value=url,
            remedy="check the address, the network and the credentials, such as AWS_ACCESS_KEY_ID",
        ) from error
    return {full: info for full, info in found.items() if not full.endswith(_FOLDER_MARKERS)}


def _entries(fs: Any, root: str, found: dict[str, dict[str, Any]], sidecars: Counter[str]) -> Iterator[SourceFile]:
    prefix, names = root.rstrip("/") + "/", CaptionNames(found)
    for full, info in sorted(found.items()):
        path = full.removeprefix(prefix)
        if is_hidden(path):
            continue
        if formats.is_archive(path):
            yield from _members(fs, full, path, info, sidecars)
        elif formats.is_sidecar(posixpath.basename(path)):
            sidecars.update([] if path.lower().endswith(SUFFIXES) else [extension_of(path)])
        else:
            yield _file(fs, full, path, info, names)


def _file(fs: Any, full: str, path: str, listed: dict[str, Any] | None, names: CaptionNames) -> SourceFile:
    problem = None if formats.kind_of(path) else formats.why_not_read(path)
    try:
        info = listed if listed and problem else location.remote_info(fs, full, listed)
    except OSError as error:
        return _unreadable(path, error)
    size = int(info.get("size") or 0)
    return SourceFile(path, size, location.version_of(info), problem, captions=names.files_of(full))


def _members(fs: Any, full: str, path: str, info: dict[str, Any], sidecars: Counter[str]) -> list[SourceFile]:
    try:
        info = location.remote_info(fs, full, info)
        return archive.members(path, location.version_of(info), _contents(fs, full, info), sidecars)
    except OSError as error:
        return [_unreadable(path, error)]


def _contents(fs: Any, full: str, info: dict[str, Any]) -> archive.ArchiveHeaders:
    """Read the headers of an archive, or what is kept of them for its version."""

    def fetch(target: Path) -> None:
        # Of large members, little more than the headers is read; small ones are not worth a request for each.
        with location.reached(), fs.open(full, "rb", block_size=_READ_AHEAD_BYTES) as file:
            target.write_text(json.dumps(archive.read(file)), encoding="utf-8")

    version = location.version_of(info)
    key = digests.digest_json(["headers", str(fs.unstrip_protocol(full)), info.get("size"), version])
    kept = FileCache.from_environment().get(f"{key}.json", fetch)
    headers, damage = json.loads(kept.read_text(encoding="utf-8"))
    if damage or not version:  # which may be otherwise the next time
        kept.unlink(missing_ok=True)
    return archive.ArchiveHeaders([archive.MemberHeader(*header) for header in headers], damage)


def look_up(name: str, url: str, paths: Sequence[str]) -> list[SourceFile]:
    """Look up the files of a list below an address; a missing one becomes an entry with that problem.

    Storages that can list a folder are asked once for all files, web servers for each.
    """
    fs, root = location.filesystem(url)
    prefix = root.rstrip("/") + "/"
    is_web = url.startswith(("http://", "https://"))
    found = {} if is_web else _find(fs, root, name, url)

    def info_of(path: str) -> dict[str, Any] | None:
        if not is_web:
            return found.get(prefix + path)
        with suppress(FileNotFoundError):
            return location.remote_info(fs, prefix + path)
        return None

    def members(path: str) -> list[SourceFile] | None:
        info = info_of(path)
        return None if info is None else _members(fs, prefix + path, path, info, Counter())

    archives, names = archive.Archives(members), CaptionNames(found)

    def entry(path: str) -> SourceFile:
        if formats.kind_of(path) is None:
            return SourceFile(path, problem=formats.why_not_read(path))
        inside = archives.member(path)
        if inside is not None and inside.problem is None:
            return inside
        try:
            info = info_of(path)
        except OSError as error:
            return _unreadable(path, error)
        if info is None:
            return inside or SourceFile(path, problem=NO_FILE)
        return _file(fs, prefix + path, path, info, names)

    for path in paths:  # so that each archive is read once, and its members are not asked for
        archives.member(path)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(entry, paths))


def current(file: MediaPath) -> MediaPath:
    """Return a list's location as it is now, so that a changed remote file is not read from an old copy."""
    if not isinstance(file, Location):
        return file
    info = location.remote_info(*location.filesystem(file.file))
    user_files.require_size(file, int(info.get("size") or 0), user_files.LIST)
    return replace(file, version=location.version_of(info))


def _unreadable(path: str, error: OSError) -> SourceFile:
    return SourceFile(path, problem=f"cannot be read: {error.strerror or error}")
