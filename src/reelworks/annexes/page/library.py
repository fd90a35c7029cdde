"""Recipes and catalogs whose clips the page shows, read in the background and again when their files change."""

from __future__ import annotations

import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cachetools import LRUCache

from reelworks.annexes.page import clips, datasets, file_status, understood
from reelworks.annexes.page.clips import ClipView
from reelworks.annexes.page.datasets import Datasets
from reelworks.annexes.page.workspace import Workspace, text_of
from reelworks.core.errors import UserError
from reelworks.core.results import Json
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

_CATALOG = "catalog-"  # before the key of a catalog, in addresses
_MOST_ROWS = 3_000_000  # of all that is kept in memory
_AHEAD_ROWS = 1_500_000  # of what is read before anybody asks
_FRESH_SECONDS = 1.0
_RUNS_SECONDS = 30.0  # the records of runs are read again so often at most
_RUNS_PATIENCE = 20  # and in at most one of so many seconds


@dataclass(frozen=True)
class DataSource:
    """A recipe, a run's data, or a catalog: something that a key of the data page names.

    Attributes:
        kind: "run" for a catalog in a run's folder, which is shown with the run's recipe.
        file: The recipe, or the catalog's folder.
        catalog: Folder of the catalog, which need not exist.
        runs: Run folders whose records tell which clips were trained.
    """

    key: str
    kind: Literal["recipe", "run", "catalog"]
    file: Path
    recipe: Recipe | None
    catalog: Path
    runs: tuple[Path, ...] = ()

    @property
    def has_catalog(self) -> bool:
        """Whether the catalog exists."""
        return self.scanned > 0

    @property
    def scanned(self) -> float:
        """Return when the catalog last changed, in seconds since 1970; 0 if there is none."""
        found = file_status.status(self.catalog / datasets.CATALOG_FILE)
        return 0.0 if found is None else found[0] / 1e9


@dataclass
class _Entry:
    """Progress of reading the clips of a key, and the state of the files that it read."""

    stamp: tuple[Any, ...] = ()
    runs_stamp: tuple[Any, ...] = ()
    runs_seconds: float = 0.0
    read_at: float = 0.0
    checked_at: float = 0.0
    version: int = 0
    doing: str = ""
    share: float = 0.0
    waiting: bool = False
    error: UserError | None = None


class Library:
    """Reads clips of recipes and catalogs, one after the other, in a thread of its own."""

    def __init__(self, workspace: Workspace, opened: Datasets) -> None:
        self._workspace, self._datasets = workspace, opened
        self._entries: dict[str, _Entry] = {}
        # One that is larger than all that may be kept is kept alone.
        self._clips: LRUCache[str, ClipView] = LRUCache(_MOST_ROWS, getsizeof=lambda view: min(len(view), _MOST_ROWS))
        self._changed = threading.Condition()
        self._queue: list[str] = []
        self._closed = False
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Stop after what is being read."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def source(self, key: str) -> DataSource:
        """Return what a key names; raises `UserError` if there is no such thing, or the recipe is wrong."""
        if not key.startswith(_CATALOG):
            file = self._workspace.recipe(key)
            recipe = _recipe(file)
            folder = self._workspace.require(Path(recipe.catalog_folder))
            if key in self._workspace.index().runs:
                return DataSource(key, "run", file, recipe, folder, (file.parent,))
            return DataSource(key, "recipe", file, recipe, folder, self._runs_of(recipe, folder))
        catalog = self._workspace.catalog(key.removeprefix(_CATALOG))
        run = RunFolder(catalog.parent)
        if not (run.info_file.is_file() and run.recipe_file.is_file()):
            return DataSource(key, "catalog", catalog, None, catalog)
        recipe = _recipe(run.recipe_file).model_copy(update={"catalog": str(catalog)})
        return DataSource(key, "run", run.recipe_file, recipe, catalog, (run.path,))

    def _runs_of(self, recipe: Recipe, catalog: Path) -> tuple[Path, ...]:
        """Return the runs whose folder a recipe names, or that use its catalog."""
        output = Path(recipe.output).resolve()
        runs = self._workspace.index().runs.values()
        return tuple(p for p in runs if p.resolve() == output or _catalog_of(RunFolder(p).recipe_file) == catalog)

    def list_rows(self) -> list[Json]:
        """Return a line for each recipe and catalog; those of usual size begin to be read."""
        found = self._workspace.index()
        keys = [*found.recipes, *(_CATALOG + key for key in found.catalogs)]
        rows, of_recipes = [], set()
        for key in keys:
            row, catalog = self._row(key)
            if row["kind"] == "recipe":
                of_recipes.add(catalog)
            if not (row["kind"] == "run" and catalog in of_recipes):
                rows.append(row)
        ahead = 0
        for row in sorted(rows, key=lambda row: -row["changed"]):
            ahead += row["clips"] or 0
            if row["clips"] and ahead <= _AHEAD_ROWS:
                row |= self.state(row["key"])
        return rows

    def _row(self, key: str) -> tuple[Json, Path | None]:
        try:
            with understood.reading(key):
                source = self.source(key)
        except UserError as error:
            found = self._workspace.index().recipes
            path = self._workspace.label(found[key]) if key in found else key
            row = {"key": key, "kind": "recipe", "name": Path(path).stem, "path": path, "clips": None, "changed": 0.0}
            return row | {"state": "error"} | error.to_json(), None
        named = source.file if source.kind == "recipe" else source.catalog
        name = {"recipe": named.stem, "run": named.parent.name}.get(source.kind, named.name)
        about = {"key": key, "kind": source.kind, "name": text_of(name), "path": self._workspace.label(named)}
        if not source.has_catalog:
            return about | {"state": "none", "clips": None, "changed": 0.0}, source.catalog
        try:
            with understood.reading(source.catalog):
                parts = Catalog.open(source.catalog).parts
        except UserError as error:
            return about | {"state": "error", "clips": None, "changed": 0.0} | error.to_json(), source.catalog
        live = sum(part.rows - part.retired for part in parts)
        return about | {"state": "closed", "clips": live, "changed": parts[-1].time if parts else 0.0}, source.catalog

    def state(self, key: str) -> Json:
        """Return how far a key is read, and begin to read it if that is needed."""
        with self._changed:
            entry = self._check(key)
            state = "error" if entry.error else "ready" if key in self._clips else "opening"
            reading = {"doing": entry.doing, "share": round(entry.share, 2)} if entry.waiting else None
            wrong = entry.error.to_json() if entry.error else {}
            return {"state": state, "version": entry.version, "reading": reading} | wrong

    def clips(self, key: str, *, fresh: bool = False, patience: float = 60.0) -> ClipView:
        """Return the clips of a key; waits until they are read for the first time.

        Args:
            fresh: Wait until what is being read again is there, too.
            patience: Seconds to wait.
        """
        end = time.monotonic() + patience
        with self._changed:
            # What is being read may be older than a change that was made just now: its files are looked at again.
            while (entry := self._check(key, now=fresh)).error is None:
                left = end - time.monotonic()
                if (key in self._clips and not (fresh and entry.waiting)) or self._closed or left <= 0:
                    break
                self._changed.wait(left)
            if entry.error is not None:
                raise entry.error
            if key not in self._clips:
                raise UserError(
                    "its clips are still being read",
                    code="still-reading",
                    field="data",
                    value=key,
                    remedy="wait a moment; the page shows how far it is",
                )
            return self._clips[key]

    def replace(self, key: str, changed: ClipView) -> None:
        """Show changed clips at once; they are read again in the background."""
        with self._changed:
            self._clips[key] = changed
            self._entries[key].version += 1

    def _check(self, key: str, *, now: bool = False) -> _Entry:
        """Return the entry of a key, which is read if its files have changed; the lock is held."""
        entry = self._entries.setdefault(key, _Entry())
        time_now = time.monotonic()
        is_known = key in self._clips or entry.error is not None  # else it is new, or was forgotten
        if entry.waiting or (is_known and not now and time_now - entry.checked_at < _FRESH_SECONDS):
            return entry
        entry.checked_at = time_now
        try:
            source = self.source(key)
            if not source.has_catalog:
                Catalog.open(source.catalog)
        except UserError as error:
            entry.error, entry.stamp = error, ()
            self._clips.pop(key, None)
            return entry
        quiet = time_now - entry.read_at > max(_RUNS_SECONDS, _RUNS_PATIENCE * entry.runs_seconds)
        of_runs = quiet and entry.runs_stamp != _runs_stamp(source)
        if not is_known or entry.stamp != _stamp(source) or of_runs:
            entry.waiting, entry.error, entry.doing, entry.share = True, None, "waiting", 0.0
            self._queue.append(key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="library", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return entry

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                key = self._queue.pop()  # what was asked for last is wanted most
                entry = self._entries[key]
            self._read(key, entry)

    def _read(self, key: str, entry: _Entry) -> None:
        def tell(doing: str, share: float) -> None:
            entry.doing, entry.share = doing, share

        with self._changed:
            former = self._clips.get(key)
        found: ClipView | None = None
        error: UserError | None = None
        began, stamp, runs_stamp = time.monotonic(), entry.stamp, entry.runs_stamp
        try:
            source = self.source(key)
            stamp, runs_stamp = _stamp(source), _runs_stamp(source)
            tell("reading the catalog", 0.0)
            data = self._datasets.open(source.recipe, source.catalog)
            found = clips.read(data, source.runs, former, tell)
        except UserError as problem:
            error = problem
        except Exception as problem:
            traceback.print_exc()
            error = UserError(
                f"the clips cannot be read ({type(problem).__name__}: {problem})",
                code="clips-unreadable",
                field="data",
                value=key,
                remedy="scan them again; if that does not help, report a defect with what the terminal shows",
            )
        with self._changed:
            self._clips.pop(key, None)
            if found is not None:
                self._clips[key] = found
            entry.error, entry.waiting = error, False
            entry.stamp, entry.runs_stamp = stamp, runs_stamp
            entry.read_at = entry.checked_at = time.monotonic()
            entry.runs_seconds = entry.read_at - began
            entry.version += 1
            self._changed.notify_all()


def _catalog_of(file: Path) -> Path | None:
    """Return the resolved folder of the catalog that a run's recipe names; None if it cannot be read."""
    with suppress(UserError):
        return Path(_recipe(file).catalog_folder).resolve()
    return None


_recipe = file_status.kept(recipe_file.load, most=512)


def _stamp(source: DataSource) -> tuple[Any, ...]:
    """Return what changes when a source must be read again."""
    return (source.runs, file_status.status(source.file), *datasets.stamp(source.recipe, source.catalog))


def _runs_stamp(source: DataSource) -> tuple[Any, ...]:
    return tuple(file_status.status(RunFolder(path).events_file) for path in source.runs)
