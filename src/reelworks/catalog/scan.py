"""Bring a catalog up to date with the folders and lists that it describes.

A scan lists every file, but opens only those whose size or time of change differ from their live row.
A new or changed file appends a row, a changed or vanished one retires its former row, and a scan that
finds nothing changed writes nothing. A file that cannot be trained on is a row with its reason.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reelworks.catalog import lists, look, pool, walk
from reelworks.catalog.source import Source
from reelworks.catalog.store import Catalog
from reelworks.catalog.update import Listed, Update
from reelworks.catalog.walk import Listing
from reelworks.core.errors import UserError
from reelworks.run import lock

# Two threads open 3300 files a second, and spawning processes costs a second or two of imports.
PROCESSES_FROM = 2000
_SECONDS_BETWEEN_REPORTS = 0.2


@dataclass(frozen=True)
class ScanProgress:
    """How far a scan is: files done of all, files a second, and seconds to go at that rate."""

    done: int
    total: int
    rate: float
    eta_seconds: float


@dataclass(frozen=True)
class ScanResult:
    """What a scan found; `found` = `new` + `changed` + `unchanged`.

    Attributes:
        found: Files with the extension of a video or picture, and rows of lists.
        new: Files that had no live row.
        changed: Files whose content, caption, scores or folder differ from their former row.
        unchanged: Files whose row still holds.
        removed: Rows whose file has vanished.
        bad_files: Path and reason of each file that cannot be trained on, known ones included.
        version: Version of the catalog after the scan.
        notes: Of each list, what was taken of it and what was not; of each folder, what else lies there.
    """

    found: int
    new: int
    changed: int
    unchanged: int
    removed: int
    bad_files: tuple[tuple[str, str], ...]
    version: int
    notes: tuple[str, ...] = ()

    @property
    def bad(self) -> int:
        """Number of files that cannot be trained on."""
        return len(self.bad_files)


def scan(
    sources: Sequence[Source],
    catalog_path: Path,
    *,
    workers: int,
    on_progress: Callable[[ScanProgress], None] | None = None,
) -> ScanResult:
    """Scan folders and lists into a catalog; datasets of the catalog that are not named stay as they are.

    Args:
        sources: The datasets.
        catalog_path: The catalog's folder; made if it is not there.
        workers: Threads, or from `PROCESSES_FROM` files to open, processes.
        on_progress: Called a few times a second and once at the end, if any file had to be looked at.

    Raises:
        UserError: Two sources have one name; a folder is missing or holds no media; a list cannot be read,
            or is wrong in some row (see `lists.read`); the catalog is damaged, cannot be written, or is being
            written by another scan.
    """
    _check_names(sources)
    listings = [_listing(source) for source in sources]
    busy = "wait until it has finished"
    with lock.hold(catalog_path / ".lock", doing="scan", field="catalog", remedy=busy):
        update = Update(Catalog.open_or_new(catalog_path))
        listed = [
            update.compare(source.name, source.root.resolve(), listing)
            for source, listing in zip(sources, listings, strict=True)
        ]
        _look_at_all(update, listed, workers, on_progress)
        result = _finish(update, sources)
    return replace(result, notes=tuple(listing.note for listing in listings if listing.note is not None))


def _listing(source: Source) -> Listing:
    if source.list_file is not None:
        return lists.read(source)
    return walk.listing(source.name, source.root.resolve())


def _look_at_all(
    update: Update,
    listed: Sequence[Listed],
    workers: int,
    on_progress: Callable[[ScanProgress], None] | None,
) -> None:
    to_apply, to_look_at = itertools.tee(task for files in listed for task in update.tasks(files))
    findings = pool.map_ordered(
        look.look,
        (task.look for task in to_look_at),
        workers=workers,
        processes=sum(int(files.open.sum()) for files in listed) >= PROCESSES_FROM,
        crashed=look.crashed,
    )
    reporter = _Reporter(sum(int(files.look.sum()) for files in listed), on_progress)
    for task, finding in zip(to_apply, findings, strict=True):
        update.apply(task, finding)
        reporter.step()


def _finish(update: Update, sources: Sequence[Source]) -> ScanResult:
    retired = update.retired([source.name for source in sources])
    catalog = update.catalog
    if update.rows_appended or len(retired):
        named = [{"name": source.name, "root": str(source.root.resolve())} for source in sources]
        catalog = catalog.append(update.table(), retired, named)
    return ScanResult(
        found=update.new + update.changed + update.unchanged,
        new=update.new,
        changed=update.changed,
        unchanged=update.unchanged,
        removed=len(retired) - update.changed,
        bad_files=tuple(update.bad_files),
        version=catalog.version,
    )


def _check_names(sources: Sequence[Source]) -> None:
    names = [source.name for source in sources]
    for source in sources:
        if names.count(source.name) > 1:
            folders = ", ".join(str(s.root) for s in sources if s.name == source.name)
            raise UserError(
                f"two datasets have this name: {folders}",
                field="dataset.name",
                value=source.name,
                remedy="give each [[dataset]] a name of its own: clips are identified by it",
            )


class _Reporter:
    """Counts files and reports now and then."""

    def __init__(self, total: int, report: Callable[[ScanProgress], None] | None) -> None:
        self._total, self._report = total, report
        self._done = 0
        self._start = self._last = time.monotonic()

    def step(self) -> None:
        """Count one file."""
        self._done += 1
        now = time.monotonic()
        due = now - self._last >= _SECONDS_BETWEEN_REPORTS or self._done == self._total
        if self._report is not None and due:
            self._last = now
            rate = self._done / max(now - self._start, 1e-9)
            self._report(ScanProgress(self._done, self._total, rate, (self._total - self._done) / rate))
