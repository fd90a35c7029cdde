"""The folders that the page may read, and the runs, recipes and catalogs in them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reelworks.annexes.page import file_status
from reelworks.core import digests, toml, user_files
from reelworks.core.errors import UserError
from reelworks.data.run.folder import RunFolder

_DEPTH = 6  # folders below a root
_MOST_ENTRIES = 4000  # a folder with more entries holds footage
_FRESH_SECONDS = 2.0
_MOST_RECIPE_BYTES = 1_000_000


def key_of(path: Path) -> str:
    """Return the name by which the page asks for a file or folder, so that no path comes from the browser."""
    return digests.digest_bytes(os.fsencode(path.resolve()))[:16]


def text_of(path: Path | str) -> str:
    """Return a path as text that can be sent; bytes that are no text become a sign for that."""
    return os.fsencode(path).decode(errors="replace")


@dataclass(frozen=True)
class WorkspaceIndex:
    """Runs, recipes, catalogs and folders of the roots, by key."""

    runs: dict[str, Path] = field(default_factory=dict)
    recipes: dict[str, Path] = field(default_factory=dict)
    catalogs: dict[str, Path] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)  # that may hold footage


class Workspace:
    """Folders named at the start; nothing outside of them is read for the page.

    Args:
        roots: The folders; commands run in the first one.
    """

    def __init__(self, roots: list[Path]) -> None:
        for root in roots:
            if not root.is_dir():
                raise UserError(
                    "there is no such folder",
                    code="no-such-folder",
                    field="FOLDER",
                    value=str(root),
                    remedy="give the folder that holds runs, recipes and footage",
                )
        self.roots = tuple(dict.fromkeys(root.resolve() for root in roots))
        self._index, self._at = WorkspaceIndex(), -_FRESH_SECONDS
        self._lock = threading.Lock()

    @property
    def state_folder(self) -> Path:
        """Folder of the page's own files: this user's, so that nothing in the folders that it shows is taken for one."""
        return user_files.state_folder() / "ui" / key_of(self.roots[0])

    def holds(self, path: Path) -> bool:
        """Return whether a path lies in one of the folders, links resolved."""
        resolved = path.resolve()
        return any(resolved.is_relative_to(root) for root in self.roots)

    def require(self, path: Path) -> Path:
        """Return the resolved path; raises `UserError` if it lies outside of the folders."""
        if not self.holds(path):
            raise UserError(
                "it lies outside of the folders that the page may read",
                code="outside-of-folders",
                field="FOLDER",
                value=str(path),
                remedy="start the page with that folder too: reelworks ui FOLDER FOLDER",
            )
        return path.resolve()

    def index(self, *, again: bool = False) -> WorkspaceIndex:
        """Return what the folders hold, as of a moment ago."""
        with self._lock:
            if again or time.monotonic() - self._at > _FRESH_SECONDS:
                self._index, self._at = _look(self.roots, self._index), time.monotonic()
            return self._index

    def run(self, key: str) -> RunFolder:
        """Return a run by its key."""
        return RunFolder(self._path_of("runs", key, "run"))

    def recipe(self, key: str) -> Path:
        """Return a recipe's file by its key, or that of a run by the run's."""
        if key in self.index().runs:
            return self.run(key).recipe_file
        return self._path_of("recipes", key, "recipe")

    def catalog(self, key: str) -> Path:
        """Return a catalog's folder by its key."""
        return self._path_of("catalogs", key, "catalog")

    def named_in_recipes(self, key: str) -> Path:
        """Return a folder of footage by its key, relative if it lies in the first root, so that this can be moved."""
        folder = self._path_of("folders", key, "folder")
        return folder.relative_to(self.roots[0]) if folder.is_relative_to(self.roots[0]) else folder

    def label(self, path: Path) -> str:
        """Return a path as people write it: relative to its root if there is only one."""
        resolved = path.resolve()
        for root in self.roots:
            if resolved.is_relative_to(root):
                inside = resolved.relative_to(root)
                return text_of(inside if len(self.roots) == 1 else root.name / inside)
        return text_of(path)

    def about(self, path: Path) -> dict[str, str]:
        """Return name and label of a recipe's file."""
        return {"name": text_of(path.stem), "path": self.label(path)}

    def _path_of(self, kind: str, key: str, noun: str) -> Path:
        path = getattr(self.index(), kind).get(key)
        if path is None or not path.exists():
            path = getattr(self.index(again=True), kind).get(key)
        if path is None:
            raise UserError(
                f"there is no such {noun} any more",
                code="not-found",
                field=noun,
                value=key,
                remedy="go back to the list, which shows what the folders hold now",
            )
        return Path(path)


def _look(roots: tuple[Path, ...], former: WorkspaceIndex) -> WorkspaceIndex:
    """Find what the folders hold; a file that was a recipe stays one, since an editor may be in the middle of it."""
    found = WorkspaceIndex()
    for root in roots:
        for folder, names in _folders(root, _DEPTH):
            _note(found, folder, names, former.recipes)
    return found


def _folders(folder: Path, depth: int) -> Iterator[tuple[Path, list[str]]]:
    """Yield folders and the names of their files; neither hidden folders nor links are entered."""
    names: list[str] = []
    inside: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number == _MOST_ENTRIES:
                    inside = []
                    break
                if entry.is_dir(follow_symlinks=False):
                    inside += [] if entry.name.startswith(".") else [Path(entry.path)]
                else:
                    names.append(entry.name)
    except OSError:  # removed meanwhile, or not readable
        return
    yield folder, names
    if depth and "run.json" in names:  # of a run's folders only its catalog is of interest
        inside = [path for path in inside if path.name == "catalog"]
    for path in sorted(inside) if depth else ():
        yield from _folders(path, depth - 1)


def _note(found: WorkspaceIndex, folder: Path, names: list[str], recipes: Mapping[str, Path]) -> None:
    if "run.json" in names:
        found.runs[key_of(folder)] = folder
    elif "catalog.json" in names:
        found.catalogs[key_of(folder)] = folder
    else:
        found.folders[key_of(folder)] = folder
        for name in sorted(names):
            if name.endswith(".toml") and ((key := key_of(folder / name)) in recipes or _is_recipe(folder / name)):
                found.recipes[key] = folder / name


@file_status.kept
def _is_recipe(path: Path) -> bool:
    try:
        values = toml.parse(user_files.read_text(path, _MOST_RECIPE_BYTES))
    except (OSError, ValueError):
        return False
    return "version" in values and ("dataset" in values or "model" in values)
