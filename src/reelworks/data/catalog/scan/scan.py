"""Bring a catalog up to date with the folders and lists that it describes.

A scan lists every file, but opens only those whose size, time of change or place in an archive differ from their live row.
A new or changed file appends a row, a changed or vanished one retires its former row, and a scan that finds no change
writes nothing. A scan that is killed goes on where it was (`journal.py`). A file that cannot be trained on gets a row with the reason.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from reelworks.core import executors, files
from reelworks.core.errors import UserError
from reelworks.core.executors import Executor, LocalExecutor
from reelworks.data.catalog.config import Source, same_name
from reelworks.data.catalog.scan import clip_ranges, probe_pool
from reelworks.data.catalog.scan.caption_texts import Unsettled, Waiting
from reelworks.data.catalog.scan.examine import (
    ASKED,
    FileRequest,
    Finding,
    examine,
    examine_on_node,
    failed,
    most_seconds,
)
from reelworks.data.catalog.scan.journal import ScanJournal
from reelworks.data.catalog.scan.listing import list_source
from reelworks.data.catalog.scan.update import Listed, Task, Update
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.catalog.store.summary import Summary
from reelworks.data.media import frame_index, location, probe, scenes
from reelworks.data.media.location import MediaPath
from reelworks.data.run import lock

# Two threads open 3300 files a second; spawning processes takes a second or two for imports.
PROCESSES_FROM = 2000
_FILES_PER_THREAD = 8
_FILES_PER_CALL = 32  # of a process, where a call takes as long as two small pictures
_SECONDS_BETWEEN_REPORTS = 0.2


class ScanProgress(NamedTuple):
    """Number of files examined, or clips measured, so far and in total; with the verb of the work, and what is counted."""

    done: int
    total: int
    doing: tuple[str, str] = ("scanning", "files")


@dataclass(frozen=True)
class ScanResult:
    """Result of a scan; `found` = `new` + `changed` + `unchanged`."""

    found: int  # number of files but for captions and sidecars, and of rows of lists
    new: int
    changed: int  # number of files whose content, caption, scores or folder differ from their former row
    unchanged: int
    removed: int  # number of rows whose file has vanished
    bad: int  # number of files that cannot be trained on
    # Path and reason of each file that cannot be trained on, known ones included.
    bad_files: tuple[tuple[str, str], ...]
    version: int  # of the catalog after the scan
    # Messages about the columns used and ignored of each list, the sidecars in each folder, captions, and odd files.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScanReport:
    """Result of a scan, and what the catalog holds afterwards."""

    scan: ScanResult
    summary: Summary


def scan_sources(
    sources: Sequence[Source],
    catalog_path: Path,
    *,
    workers: int = 0,
    on_progress: Callable[[ScanProgress], None] | None = None,
    engine: str = executors.LOCAL,
) -> ScanResult:
    """Scan folders and lists into a catalog, which is created if missing; its other datasets are not changed.

    Args:
        workers: Number of threads of this machine, or of processes if at least `PROCESSES_FROM` files must be opened, or one
            may end the scan; 0 for one on each core.
        on_progress: Called a few times a second and once at the end, if any file must be examined.
        engine: Engine whose workers examine the files, which are listed, and the catalog is written, here.

    Raises:
        UserError: There is no such engine, or a file or folder is not as it has to be.
    """
    names = [source.name for source in sources]
    for name, count in Counter(names).items():
        if count > 1:
            raise same_name(name, [source for source in sources if source.name == name])
    if any(source.cut.startswith(clip_ranges.SCENES) for source in sources):
        scenes.require()
    with executors.connect(engine, workers) as executor:
        listings = [list_source(source) for source in sources]
        with (
            _locked(catalog_path) as (folder, require_held),
            files.writing("catalog", catalog_path),
            ScanJournal(folder) as journal,
        ):
            catalog = Catalog.open_or_new(catalog_path)
            update = Update(catalog)
            pairs = zip(sources, listings, strict=True)
            listed = [update.compare(source.name, source.address, files, source.cut) for source, files in pairs]
            finds_scenes = any(each.cut.startswith(clip_ranges.SCENES) and each.open.any() for each in listed)
            in_threads = not (finds_scenes or journal.died or update.crashes)
            examine_all = partial(_find_all, executor=executor, finds_scenes=finds_scenes, in_threads=in_threads)
            notes = _apply_all(update, listed, examine_all, on_progress, journal, engine)
            retired = update.retired(names)
            changes = update.new or update.changed or len(retired) or update.outdated
            if changes:
                require_held()
            frame_index.write(catalog_path, update.frame_times)
            if changes:
                reader = {"reader": str(probe.VERSION)}
                named = [
                    {"name": of.dataset, "root": of.root, "scores": " ".join(of.files.scores)} | reader for of in listed
                ]
                catalog = catalog.append(update.table(names), retired, named)
    return ScanResult(
        found=update.new + update.changed + update.unchanged,
        new=update.new,
        changed=update.changed,
        unchanged=update.unchanged,
        removed=len(retired) - int(update.replaced.sum()),
        bad=len(update.bad_files),
        bad_files=tuple(update.bad_files),
        version=catalog.version,
        notes=(*(listing.note for listing in listings if listing.note is not None), *notes, *update.notes()),
    )


@contextmanager
def _locked(catalog_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Hold the catalog's lock, and yield the folder of the scan's journal, and what raises if the lock is not held.

    A catalog that others share to be read is compared without: it is good as long as nothing in it is to be changed.
    """
    with ExitStack() as stack:
        held = lock.hold(catalog_path / ".lock", doing="scan", field="catalog", remedy="wait until it has ended")
        try:
            folder, check = catalog_path, stack.enter_context(held).check
        except UserError as error:
            if error.code != "file-unwritable" or not (catalog_path / "catalog.json").exists():
                raise
            folder, check = Path(stack.enter_context(TemporaryDirectory())), partial(_raise, error)
        yield folder, check


def _raise(error: UserError) -> None:
    raise error


def _apply_all(
    update: Update,
    listed: Sequence[Listed],
    find_all: Callable[[Iterator[FileRequest], int], Iterator[Finding]],
    on_progress: Callable[[ScanProgress], None] | None,
    journal: ScanJournal,
    engine: str,
) -> list[str]:
    """Examine files and apply the results, except those that a scan which was killed has examined already.

    Captions that are not UTF-8 wait for the others. Returns what there is to say of captions.
    """
    waiting = {files.dataset: Waiting[tuple[Task, Finding]](files.root) for files in listed}
    tasks = (task for files in listed for task in update.tasks(files))
    to_apply, to_examine = itertools.tee((task, journal.get(task.request)) for task in tasks)
    requests = (task.request if known is None else task.request._replace(open=False) for task, known in to_examine)
    findings = find_all(requests, sum(int(files.open.sum()) for files in listed) - journal.known)
    total, reported = sum(int(files.look.sum()) for files in listed), time.monotonic()
    for done, ((task, known), finding) in enumerate(zip(to_apply, findings, strict=True), start=1):
        if finding.missing_on and not location.is_missing(task.request.file):
            raise unseen(task.request.file, finding.missing_on, engine)
        if known is not None and finding.error is None:
            finding = finding._replace(**known)
        elif finding.fingerprint and task.request.stated is None:  # a file that could not be read is tried again
            journal.add(task.request, finding)
        if isinstance(finding.caption, Unsettled):
            clip = task.listed.files.entries[task.number].path
            waiting[task.listed.dataset].add((task, finding), clip, finding.caption)
        else:
            update.apply(task, finding)
        due = done == total or time.monotonic() - reported >= _SECONDS_BETWEEN_REPORTS
        if on_progress is not None and due:
            reported = time.monotonic()
            on_progress(ScanProgress(done, total))
    for captions in waiting.values():
        for (task, finding), caption, _ in captions.settled():
            update.apply(task, finding._replace(caption=caption))
    return [note for captions in waiting.values() for note in captions.notes]


def _find_all(
    requests: Iterator[FileRequest], to_open: int, *, executor: Executor, finds_scenes: bool, in_threads: bool
) -> Iterator[Finding]:
    """Yield the findings of all requests, in order; `to_open` is about the number of files, in threads only if they are few."""
    ASKED.count(answered=True)  # the storage of the last scan may be another, or be back
    is_here = isinstance(executor, LocalExecutor)
    are_few = is_here and to_open < PROCESSES_FROM
    in_threads = in_threads and are_few
    # The scenes of one file take minutes to find.
    files_per_call = 1 if are_few or (is_here and finds_scenes) else _FILES_PER_CALL
    found = probe_pool.map_ordered(
        examine if is_here else examine_on_node,
        (list(of_file) for _, of_file in itertools.groupby(requests, key=attrgetter("file"))),
        workers=executor.calls_at_once,
        processes=None if in_threads else executor.pool(),
        failed=failed,
        most_seconds=most_seconds,
        name=lambda of_file: of_file[0].file,
        chunk_size=_FILES_PER_THREAD if in_threads else files_per_call,
    )
    return itertools.chain.from_iterable(found)


def unseen(file: MediaPath, node: str, engine: str) -> UserError:
    """Return the error for a file that a node of a cluster does not see."""
    return UserError(
        f"node {node} of the cluster does not see {file}, which is there on this machine",
        code="node-lacks-files",
        field="--engine",
        value=engine,
        remedy="mount the folders of the datasets at the same place on every node, or scan with --engine local",
    )
