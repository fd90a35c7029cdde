"""Keep local copies of remote files in a folder of bounded size, for all processes of a machine."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from reelworks.core import files, user_files
from reelworks.core.errors import UserError

FOLDER_VARIABLE, LIMIT_VARIABLE = "REELWORKS_CACHE", "REELWORKS_CACHE_GB"
_DEFAULT_GB = 50.0
# The folder is listed once this part of the limit has been added, and shrunk to this part.
_LISTED_EACH, _SHRUNK_TO = 0.02, 0.9


class FileCache:
    """A folder of copies; the ones that were not used for longest go first.

    Copies appear complete, since they are renamed into place. Several processes may share the folder: each removes
    what is too much when it has added 2 % of the limit, so that the limit holds but for that.

    Args:
        folder: Folder of the copies; created with the first one.
        max_bytes: Limit of their total size.
    """

    def __init__(self, folder: Path, max_bytes: float) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._added = max_bytes  # what other processes left is counted with the first copy

    @classmethod
    def from_environment(cls) -> FileCache:
        """Make the machine's cache: `REELWORKS_CACHE` is its folder, `REELWORKS_CACHE_GB` its limit (50)."""
        folder = Path(os.environ.get(FOLDER_VARIABLE) or user_files.cache_folder() / "files")
        try:
            return cls(folder, float(os.environ.get(LIMIT_VARIABLE) or _DEFAULT_GB) * 1e9)
        except ValueError:
            raise UserError(
                "the limit of the cache is not a number",
                code="cache-limit-invalid",
                field=LIMIT_VARIABLE,
                value=os.environ[LIMIT_VARIABLE],
                remedy=f"set the gigabytes that copies of remote files may take, as in {LIMIT_VARIABLE}=200",
            ) from None

    def get(self, name: str, fetch: Callable[[Path], None]) -> Path:
        """Return the copy of a name; where there is none, `fetch` writes it to the path that it is given."""
        path = self.folder / name[:2] / name
        try:
            os.utime(path)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{name}.{uuid.uuid4().hex[:8]}.part")
            try:
                fetch(part)
                part.replace(path)
            except OSError as error:
                if error.errno in files.FULL:  # which is not the remote file's fault
                    raise files.unwritable(FOLDER_VARIABLE, self.folder, error) from error
                raise
            finally:
                part.unlink(missing_ok=True)
            self._added += path.stat().st_size
            if self._added >= _LISTED_EACH * self.max_bytes:
                self._added = 0
                self._shrink(path)
        return path

    def _shrink(self, newest: Path) -> None:
        found = []
        for path in self.folder.glob("*/*"):
            with suppress(FileNotFoundError):  # another process removed it
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in found)
        if total <= self.max_bytes:
            return
        for _, size, path in sorted(found):
            if total <= _SHRUNK_TO * self.max_bytes:
                break
            if path != newest:
                path.unlink(missing_ok=True)
                total -= size
