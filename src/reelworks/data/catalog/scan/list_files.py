"""Look up the files that a list names, also where it spells them as another system does, and tell why one is missing."""

from __future__ import annotations

import os
import posixpath
import re
import stat
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from urllib.parse import unquote

from reelworks.core import retry
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import archive, remote
from reelworks.data.catalog.scan.archive import Archives
from reelworks.data.catalog.scan.source_files import NO_FILE, SourceFile
from reelworks.data.catalog.store.integrity import OUTSIDE
from reelworks.data.media import formats, location, storages


def look_up(source: Source, paths: Sequence[str], *, captions: bool) -> list[SourceFile]:
    """Return the file of each path, under the name that it has there; a missing one is an entry with that problem.

    `captions` tells whether those beside the files are looked for, too.
    """
    if source.url is not None:
        return _respelled(partial(remote.look_up, source.name, source.url, captions=captions), paths, None)
    root = str(source.root)

    def members(path: str) -> list[SourceFile] | None:
        file = source.root / path
        return [*archive.list_archive(path, file)] if file.is_file() else None

    archives = Archives(members)
    return _respelled(lambda some: [_entry(path, root, archives) for path in some], paths, _Folders(root))


def is_missing(file: SourceFile) -> bool:
    """Return whether there is no such file."""
    return file.problem is not None and file.problem.startswith(NO_FILE)


def _entry(path: str, root: str, archives: Archives) -> SourceFile:
    if formats.kind_of(path) is None:
        return SourceFile(path, problem=formats.why_not_read(path))
    try:
        # Making a Path for each of millions of files takes longer than the lookup.
        status = retry.with_retries(lambda: os.stat(f"{root}/{path}"))  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return archives.member(path) or SourceFile(path, problem=NO_FILE)
    except OSError as error:
        return SourceFile(path, problem=storages.problem(error))
    problem = None if stat.S_ISREG(status.st_mode) else "not a regular file"
    return SourceFile(path, status.st_size, location.changed_ns(status), problem, captions=None)


def _respelled(
    find: Callable[[Sequence[str]], list[SourceFile]], paths: Sequence[str], folders: _Folders | None
) -> list[SourceFile]:
    """Look up files, and again by other spellings those that are missing; the rest is told its likely cause."""
    files = find(paths)
    missing = [i for i, file in enumerate(files) if is_missing(file) or formats.kind_of(file.path) is None]
    spellings = {i: [*_spellings(paths[i]), *(folders.equal(paths[i]) if folders else ())] for i in missing}
    others = [(i, path) for i, spelled in spellings.items() for path in spelled]
    for (i, _), file in zip(others, find([path for _, path in others]) if others else (), strict=True):
        if (is_missing(files[i]) or formats.kind_of(files[i].path) is None) and formats.kind_of(file.path):
            files[i] = files[i] if is_missing(file) else file
    for i in missing:
        if folders and is_missing(files[i]) and (cause := folders.cause(files[i].path)):
            files[i] = files[i]._replace(problem=f"{NO_FILE}: {cause}")
    return files


def _spellings(path: str) -> list[str]:
    """Return other spellings of a path: without spaces around it, of Windows, of addresses, composed and decomposed."""
    forms = [path.strip(), path.strip().replace("\\", "/")]
    forms.append(unquote(forms[-1]))
    forms = [posixpath.normpath(one) for one in forms if one]
    forms += [unicodedata.normalize(form, one) for one in forms if not one.isascii() for form in ("NFC", "NFD")]
    return [one for one in dict.fromkeys(forms) if one != path and not re.search(OUTSIDE, one)]


class _Folders:
    """The names of files in the folders below a root, to find one that a list writes in another way."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._names, self._media = cache(self._listed), cache(self._media_in)

    def _listed(self, folder: str) -> dict[str, list[str]] | None:
        """Return names by how they print, in small letters; None for no folder."""
        with suppress(OSError):
            names: dict[str, list[str]] = {}
            for name in sorted(os.listdir(self._root / folder)):  # noqa: PTH208
                names.setdefault(unicodedata.normalize("NFC", name).lower(), []).append(name)
            return names
        return None

    def _media_in(self, folder: str) -> dict[str, str]:
        """Return the first of the media files of each stem."""
        names = reversed((self._names(folder) or {}).items())
        return {posixpath.splitext(form)[0]: of[0] for form, of in names if formats.kind_of(form)}

    def equal(self, path: str) -> list[str]:
        """Return the path that prints like this one, if a single one does, though folders and file mix composed signs with others."""
        if path.isascii():
            return []
        found = ""
        for part in path.strip().replace("\\", "/").split("/"):
            form = unicodedata.normalize("NFC", part)
            names = (self._names(found) or {}).get(form.lower(), ())
            alike = [name for name in names if unicodedata.normalize("NFC", name) == form]
            if len(alike) != 1:
                return []
            found = posixpath.join(found, alike[0])
        return [found]

    def cause(self, path: str) -> str:
        """Return why a file is probably missing, "" if nothing tells."""
        if re.match(r"[A-Za-z]:[\\/]", path):
            return "it is a path of Windows; write paths relative to the list's folder"
        if storages.is_url(path):
            return "it is an address; set root to that of a folder, and write paths below it"
        folder, name = posixpath.split(path)
        names = self._names(folder)
        if names is None:
            folders = accumulate(folder.split("/"), "{}/{}".format)
            above = next((one for one in folders if self._names(one) is None), folder)
            return "" if (self._root / above).is_file() else f"there is no {above}"
        form = unicodedata.normalize("NFC", name).lower()
        if form in names:
            return f"its folder has {names[form][0]}"
        other = self._media(folder).get(posixpath.splitext(form)[0])
        return f"its folder has {other}" if other else ""
