"""List the files below a folder with size and time of each, and the caption files of clips.

Files of other types are listed with the reason why they are not read, except sidecars, which are counted.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from reelworks.core import retry, user_files
from reelworks.core.errors import UserError
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import archive, lists, remote
from reelworks.data.catalog.scan.caption_names import CaptionNames
from reelworks.data.catalog.scan.source_files import NO_TARGET, Listing, SourceFile, count_sidecar, listing_of
from reelworks.data.media import formats, location, storages
from reelworks.data.run.folder import RunFolder

# What a run writes into its folder.
RUN_FOLDERS = frozenset(getattr(RunFolder(Path()), name).name for name in vars(RunFolder) if name.endswith("_folder"))


def list_source(source: Source) -> Listing:
    """List what a source names: the rows of a list, or the files at an address or in a folder."""
    if source.list_file is not None:
        return lists.read(source)
    if source.url is not None:
        return remote.list_address(source.name, source.url)
    return list_folder(source.name, source.root.resolve())


def list_folder(name: str, root: Path) -> Listing:
    """List a dataset's files, depth first, in sorted order, but for captions, sidecars, and what is hidden.

    Links are followed, except to a folder that contains them. Run folders are skipped: what a run generated is
    not training data, nor are a run's own folders in a dataset's folder that is its output. An unreadable folder is refused, since its clips would otherwise count as deleted;
    a link to what is not there is refused by `Update.compare`, if there were clips behind it.
    """
    found = user_files.existing(root)
    if found is None or not found.is_dir():
        raise UserError(
            "there is no such folder" if found is None else "this is a file, not a folder",
            code="no-such-folder",
            field=f"dataset {name!r}",
            value=str(root),
            remedy=f"give the folder that holds the videos and pictures, or a list of them ({formats.LISTS_TOLD})",
        )
    sidecars: Counter[str] = Counter()
    return listing_of(name, str(root), _walk(name, root, "", (), sidecars), sidecars)


def _walk(
    name: str, folder: Path, prefix: str, above: tuple[tuple[int, int], ...], sidecars: Counter[str]
) -> Iterator[SourceFile]:
    try:
        status, inside = retry.with_retries(lambda: _inside(folder))
    except OSError as error:
        raise _unreadable(name, folder, error) from error
    identity = (status.st_dev, status.st_ino)
    if identity in above:  # a link to a folder that contains it
        return
    names = {e.name for e in inside}
    if RunFolder(folder).info_file.name in names and _is_run(RunFolder(folder)):
        if prefix:
            return
        inside = [entry for entry in inside if entry.name not in RUN_FOLDERS]  # the dataset's folder is the output
    captions = CaptionNames(names)
    for entry in inside:
        if _is_folder(entry, name):
            yield from _walk(name, folder / entry.name, f"{prefix}{entry.name}/", (*above, identity), sidecars)
        elif formats.is_sidecar(entry.name):
            count_sidecar(entry.name, captions, sidecars)
        elif formats.is_archive(entry.name):
            yield from archive.list_archive(prefix + entry.name, Path(entry.path), sidecars)
        else:
            yield _entry(entry, prefix, captions)


def _inside(folder: Path) -> tuple[os.stat_result, list[os.DirEntry[str]]]:
    status = folder.stat()
    with os.scandir(folder) as scanned:
        return status, sorted((e for e in scanned if not e.name.startswith(".")), key=lambda e: e.name)


def _unreadable(name: str, folder: Path | str, error: OSError) -> UserError:
    return UserError(
        f"the folder {folder} cannot be read ({error.strerror})",
        code="folder-unreadable",
        field=f"dataset {name!r}",
        remedy="mount what it is on, correct its permissions, or move it out of the dataset",
    )


def _is_folder(entry: os.DirEntry[str], name: str) -> bool:
    """Return whether an entry is a folder; one that may be one and cannot be looked at is refused."""
    try:
        return retry.with_retries(entry.is_dir)
    except OSError as error:
        if storages.is_of_storage(error) and not (formats.kind_of(entry.name) or formats.is_archive(entry.name)):
            raise _unreadable(name, entry.path, error) from error
        return False  # as a link to itself


def _is_run(run: RunFolder) -> bool:
    """Return whether `run.json` is that of a run: footage beside another file of that name must be kept."""
    with suppress(OSError, ValueError):
        info = user_files.read_json(run.info_file)
        return isinstance(info, dict) and {"format", "id"} <= info.keys()
    return False


def _entry(entry: os.DirEntry[str], prefix: str, names: CaptionNames) -> SourceFile:
    path = prefix + entry.name
    captions = names.files_of(entry.name)
    try:
        status = retry.with_retries(entry.stat)
    except OSError as error:
        is_dangling = isinstance(error, FileNotFoundError) and entry.is_symlink()
        return SourceFile(path, problem=NO_TARGET if is_dangling else storages.problem(error))
    problem = None if formats.kind_of(entry.name) else formats.why_not_read(entry.name)
    problem = problem if stat.S_ISREG(status.st_mode) else "not a regular file"
    return SourceFile(path, status.st_size, location.changed_ns(status), problem, captions=captions)
