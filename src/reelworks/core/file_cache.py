"""Keep local copies of remote files in a folder of bounded size, for all processes of a machine."""

from __future__ import annotations

import errno
import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from reelworks.core import files, retry, storage, system, user_files
from reelworks.core.errors import UserError

FOLDER_VARIABLE, LIMIT_VARIABLE = "REELWORKS_CACHE", "REELWORKS_CACHE_GB"
_DEFAULT_GB = 50.0
# The folder is listed once this part of the limit has been added, and shrunk to this part.
_LISTED_EACH, _SHRUNK_TO = 0.02, 0.9
_UNFINISHED, _OLD_SECONDS = (".part", ".lock"), 3600  # what a process leaves that is killed; others are in use


class FileCache:
    """A folder of copies; the ones that were not used for longest go first.

    Copies appear complete, since they are renamed into place. Several processes may share the folder: one of them makes
    a copy, the others wait for it, and each removes what is too much when it has added 2 % of the limit, but for the copies
    that are in use. So the limit holds but for that, and for what is read at once.

    Args:
        folder: Folder of the copies; created with the first one.
        max_bytes: Limit of their total size.
    """

    def __init__(self, folder: Path, max_bytes: float) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._added = max_bytes  # what other processes left is counted with the first copy

    @classmethod
    def from_environment(cls) -> FileCache:
        """Return the machine's cache: `REELWORKS_CACHE` is its folder, `REELWORKS_CACHE_GB` its limit (50)."""
        folder = Path(os.environ.get(FOLDER_VARIABLE) or user_files.cache_folder() / "files")
        try:
            return _shared(folder, float(os.environ.get(LIMIT_VARIABLE) or _DEFAULT_GB) * 1e9)
        except ValueError:
            raise UserError(
                "the limit of the cache is not a number",
                code="cache-limit-invalid",
                field=LIMIT_VARIABLE,
                value=os.environ[LIMIT_VARIABLE],
                remedy=f"set the gigabytes that copies of remote files may take, as in {LIMIT_VARIABLE}=200",
            ) from None

    @contextmanager
    def held(self, name: str, fetch: Callable[[Path], None]) -> Iterator[Path]:
        """Give the copy of a name, which stays meanwhile; where there is none, `fetch` writes it to the path that it is given.

        Raises:
            UserError: The folder cannot be written, or the copy in it not be read.
            OSError: Of `fetch`; or, as one that may vanish, of the folder, or the copy was removed while it was read.
        """
        path = self.folder / name[:2] / name
        with ExitStack() as until:
            while not self._hold(path, until):
                self._make(path, fetch)
            try:
                yield path
            except FileNotFoundError as error:
                if path.exists():
                    raise
                raise OSError(errno.ESTALE, "the copy in the cache was removed while it was read", str(path)) from error

    def has(self, name: str) -> bool:
        """Return whether there is a copy of a name."""
        return (self.folder / name[:2] / name).exists()

    def _make(self, path: Path, fetch: Callable[[Path], None]) -> None:
        part, lock = (path.with_name(f"{path.name}{end}") for end in (f".{uuid.uuid4().hex[:8]}.part", ".lock"))
        try:
            with files.writing(FOLDER_VARIABLE, self.folder):
                path.parent.mkdir(parents=True, exist_ok=True)
            with self._own():
                alone = lock.open("wb")
            with alone:
                with suppress(system.NoLocks):  # then each process makes one
                    system.lock(alone.fileno(), wait=True)
                if path.exists():  # made by another meanwhile
                    return
                fetch(part)
                with self._own():
                    self._added += part.stat().st_size
                    storage.rename(part, path)
        except OSError as error:
            if error.errno in files.FULL:  # which is not the remote file's fault
                raise files.unwritable(FOLDER_VARIABLE, self.folder, error) from error
            raise
        finally:
            for left in (part, lock):
                with suppress(OSError):  # Windows removes no file that others have open
                    left.unlink()
        if self._added >= _LISTED_EACH * self.max_bytes:
            self._added = 0
            self._shrink(path)

    def _hold(self, path: Path, until: ExitStack) -> bool:
        """Open a copy, which then stays, and mark it as used; return whether there is one."""
        with self._own():
            try:
                copy = until.enter_context(path.open("rb"))
            except FileNotFoundError:
                return False
            with suppress(system.NoLocks):
                system.lock(copy.fileno(), shared=True, wait=True)
        with suppress(OSError):  # it is another user's, or the folder is read-only
            os.utime(path)
        return path.exists()

    @contextmanager
    def _own(self) -> Iterator[None]:
        """Raise what the folder's disk says, which is nothing about remote files, as a `UserError`, unless it may vanish."""
        try:
            yield
        except FileNotFoundError as error:
            raise OSError(errno.ESTALE, "the copy in the cache was removed meanwhile", str(self.folder)) from error
        except OSError as error:
            if retry.is_transient(error):
                raise
            raise files.unwritable(FOLDER_VARIABLE, self.folder, error) from error

    def _shrink(self, newest: Path) -> None:
        found, now = [], time.time()
        for path in self.folder.glob("*/*"):
            with suppress(FileNotFoundError):  # another process removed it
                status = path.stat()
                in_use = path == newest or (path.suffix in _UNFINISHED and now - status.st_mtime < _OLD_SECONDS)
                found.append((in_use, status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, _, size, _ in found)
        if total <= self.max_bytes:
            return
        for in_use, _, size, path in sorted(found):
            if in_use or total <= _SHRUNK_TO * self.max_bytes:
                break
            with suppress(BlockingIOError, PermissionError):  # somebody reads it, or it is another user's
                with suppress(FileNotFoundError, PermissionError, system.NoLocks), path.open("rb+") as copy:
                    system.lock(copy.fileno())
                path.unlink(missing_ok=True)
                total -= size


@functools.cache
def _shared(folder: Path, max_bytes: float) -> FileCache:
    return FileCache(folder, max_bytes)  # one for all, since it counts what was added
