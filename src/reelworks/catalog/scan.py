"""Bring a catalog up to date with the folders and lists that it describes.

A scan lists every file, but opens only those whose size or time of change differ from their live row. A new or
changed file appends a row, a changed or vanished one retires its former row, and a scan that finds no change
writes nothing. A scan that is killed goes on where it was (`journal.py`). A file that cannot be trained on gets a row with the reason.
"""

from __future__ import annotations

import itertools
import math
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog import (
    clip_ranges,
    frame_index,
    listing,
    lists,
    location,
    probe,
    probe_pool,
    remote,
    scenes,
)
from reelworks.catalog.archive import Range
from reelworks.catalog.clip_ranges import ClipRange
from reelworks.catalog.config import Source
from reelworks.catalog.formats import ProbeError, kind_of
from reelworks.catalog.frame_index import Packed
from reelworks.catalog.journal import FileState, ScanJournal
from reelworks.catalog.listing import Listing, SourceFile, list_folder
from reelworks.catalog.location import MediaPath
from reelworks.catalog.rows import SCORE, as_numpy, schema
from reelworks.catalog.store import Catalog
from reelworks.core import hash_rng, ray_cluster
from reelworks.core.errors import UserError
from reelworks.core.ray_cluster import Engine, RayPool
from reelworks.core.worker_pool import WorkerPool
from reelworks.run import lock

T = TypeVar("T")


class Look(NamedTuple):
    """A request to examine one file."""

    file: MediaPath
    captioned: int  # number of its caption files to read
    open: bool  # whether to open the file; otherwise only its caption is read
    known: str  # fingerprint of the content at the last scan, which need not be measured again
    problem: str | None = None  # found by the listing; the file is then not opened
    caption: Range | None = None  # bytes of an archive that hold its caption
    stated: probe.Probe | None = None  # measures of a trusted list
    fingerprint: str = ""  # in place of that of the content, if measures are `stated`
    cut: str = ""  # how to cut the file into clips
    clip: str = ""  # text of the only clip that is wanted of it; "" for all


class Finding(NamedTuple):
    """Result of examining one file."""

    caption: str | None  # text of the caption file, None if there is no such file
    fingerprint: str | None  # fingerprint of the content; None if the file was not opened, "" if it could not be read
    probe: probe.Probe | None = None  # measures; None if the content is known, or after an error
    error: str | None = None  # why the file cannot be trained on; only for files that were opened
    times: Packed | None = None  # frame times of a long video
    clips: tuple[ClipRange, ...] = ()  # ranges that are clips of their own; none for a whole file
    missing_on: str = ""  # name of the node of a cluster that does not see the file


def examine(order: Look) -> Finding:
    """Examine one file; any problem with it becomes `Finding.error`."""
    if order.problem is not None:
        return Finding(None, "", error=order.problem)
    try:
        caption = listing.read(order.file, order.captioned, order.caption) if order.captioned else None
        if order.open and order.stated is not None:
            return Finding(caption, order.fingerprint, order.stated)
        path = location.local(order.file) if order.open else order.file
        fingerprint = _of_file(location.fingerprint, path, order) if order.open else None
    except OSError as error:
        return Finding(None, "", error=f"cannot be read: {error.strerror or error}")
    if fingerprint is None or fingerprint == order.known:
        return Finding(caption, fingerprint)
    try:
        measured = _of_file(probe.probe, path, order)
        long = measured.duration_seconds >= frame_index.FROM_SECONDS and measured.kind == kind_of(path.name)
        times = frame_index.pack(clip_ranges.frame_times_of(path)) if long else None
        clips = clip_ranges.find(path, order.cut, order.clip) if order.cut else ()
        return Finding(caption, fingerprint, measured, times=times, clips=clips)
    except ProbeError as error:
        return Finding(caption, fingerprint, error=str(error))


def _of_file(measure: Callable[[MediaPath], T], path: MediaPath, order: Look) -> T:
    """Measure the file of an order; of a list's ranges of one file, which follow each other, only the first does it."""
    if not order.clip:
        return measure(path)
    result: T = _remembered(measure, path, location.stamp(path))
    return result


@lru_cache(maxsize=4)
def _remembered(measure: Callable[[MediaPath], Any], path: MediaPath, stamp: tuple[int, int]) -> Any:
    return measure(path)


def examine_on_node(order: Look) -> Finding:
    """Examine one file on a node of a cluster, which may not see the files that the listing has found."""
    finding = examine(order)
    unseen = finding.fingerprint == "" and order.problem is None and location.is_missing(order.file)
    return finding._replace(missing_on=socket.gethostname()) if unseen else finding


def crashed(order: Look) -> Finding:
    """Return the result for a file whose process died; the next scan examines it again."""
    return Finding(None, "", error="the decoder crashed on it")


_ROWS_PER_BATCH = 8192  # rows collected as Python values before they are converted to Arrow arrays


class Listed(NamedTuple):
    """A dataset's files and their live rows; arrays have one element for each file."""

    dataset: str
    root: str  # absolute path or address of the dataset's folder
    files: Listing
    uid: NDArray[np.uint64]
    position: NDArray[np.int64]  # indices of the live rows, -1 for new files
    open: NDArray[np.bool_]  # mask of files that must be opened, because their row may be out of date
    look: NDArray[np.bool_]  # mask of files to examine: those to open, and those whose caption file must be read
    same_scores: NDArray[np.bool_]  # mask of files whose live row has the scores of the list


class Task(NamedTuple):
    """One listed file with the request to examine it; `number` is its index in `listed`."""

    listed: Listed
    number: int
    look: Look

    @property
    def state(self) -> FileState:
        """The file as the listing found it, by which a journal knows it."""
        entry = self.listed.files.entries[self.number]
        look = self.look
        return FileState(str(look.file), entry.size_bytes, entry.mtime_ns, look.known, look.cut, look.clip)


class Update:
    """The next part of a catalog while it is being collected.

    Attributes:
        catalog: The catalog before the update.
        new, changed, unchanged: Number of files without a live row, with an outdated and with a valid one.
        bad_files: Path and reason of each file that cannot be trained on.
        frame_times: Frame times of long videos by fingerprint.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.new = self.changed = self.unchanged = 0
        self.bad_files: list[tuple[str, str]] = []
        self.frame_times: dict[str, Packed] = {}
        self._live = catalog.live()
        self._scores: dict[str, None] = dict.fromkeys(self._live.scores)  # an ordered set of names
        self._listed = np.zeros(len(self._live), dtype=np.bool_)
        self._replaced = np.zeros(len(self._live), dtype=np.bool_)
        self._waiting: list[tuple[int, dict[str, Any]]] = []  # index of the live row with the measures (or -1), values
        self._batches: list[Any] = []

    def compare(self, dataset: str, root: str, files: Listing, cut: str = "") -> Listed:
        """Find the live rows of a dataset's files, and the files to examine.

        If a list has the captions, rows of unchanged files are brought up to date at once. If videos are `cut`,
        unchanged ones are replaced by their clips.
        """
        files = clip_ranges.expand(files, self._live, dataset, cut) if cut else files
        entries = files.entries
        self._scores |= dict.fromkeys(files.scores)
        uid = uids_of(dataset, [entry.path for entry in entries], [entry.clip for entry in entries])
        position = self._live.find(uid)
        _refuse_collision(uid, entries)
        known = np.flatnonzero(position >= 0)
        row = position[known]
        self._listed[row] = True
        size = np.fromiter((e.size_bytes for e in entries), dtype=np.int64, count=len(entries))[known]
        mtime = np.fromiter((e.mtime_ns for e in entries), dtype=np.int64, count=len(entries))[known]
        is_current = (self._live.size_bytes[row] == size) & (self._live.mtime_ns[row] == mtime)
        # Without a fingerprint the file could not be read, which may change without a new time of change.
        is_current &= as_numpy(pc.not_equal(self._live.fingerprint, ""))[row]
        if any(entry.cut for entry in entries) or self._live.is_range.any():
            was, now = self._live.cut.take(pa.array(row)).to_pylist(), [entries[i].cut for i in known.tolist()]
            is_current &= np.array([a == b for a, b in zip(was, now, strict=True)], dtype=np.bool_)
        open_ = np.ones(len(entries), dtype=np.bool_)
        open_[known] = ~is_current
        same_scores = np.zeros(len(entries), dtype=np.bool_)
        same_scores[known] = lists.same_scores(self._live, row, files.scores, known)
        look = open_ if files.captions is not None else np.ones(len(entries), dtype=np.bool_)
        listed = Listed(dataset, root, files, uid, position, open_, look, same_scores)
        if files.captions is not None:
            self._update_listed(listed, np.flatnonzero(~look))
        return listed

    def _update_listed(self, listed: Listed, number: NDArray[np.int64]) -> None:
        """Update the rows of files that need no examination, where the list differs from them."""
        row, files = listed.position[number], listed.files
        error = self._live.error.take(pa.array(row))
        for i in np.flatnonzero(error.is_valid()).tolist():
            self.bad_files.append((f"{listed.root}/{files.entries[number[i]].path}", error[i].as_py()))
        captions = files.captions.take(pa.array(number))
        same = listed.same_scores[number] & lists.same_words(self._live, row, captions, listed.root)
        self.unchanged += int(same.sum())
        differs = np.flatnonzero(~same)
        if len(differs):
            scores = {name: score[number[differs]] for name, score in files.scores.items()}
            captions = captions.take(pa.array(differs))
            self._batches.append(lists.retold(self._live, row[differs], captions, listed.root, scores))
            self._replaced[row[differs]] = True
            self.changed += len(differs)

    def tasks(self, listed: Listed) -> Iterator[Task]:
        """Yield the files to examine one by one, since ten million tasks would take too much memory."""
        read_captions = listed.files.captions is None
        for i in np.flatnonzero(listed.look).tolist():
            entry, position = listed.files.entries[i], int(listed.position[i])
            opened = bool(listed.open[i])
            # A clip, and a file that was cut before, is measured anew even if the content is the same.
            ranged = opened and position >= 0 and (entry.cut or self._live.cut[position].as_py())
            known = self._live.fingerprint[position].as_py() if position >= 0 and not ranged else ""
            file = location.below(listed.root, entry.path, entry.start, entry.size_bytes, entry.mtime_ns)
            captioned = entry.captioned if read_captions else 0
            stated = (entry.stated, f"{entry.size_bytes:x}-{entry.mtime_ns:x}", entry.cut, entry.clip)
            yield Task(listed, i, Look(file, captioned, opened, known, entry.problem, entry.caption, *stated))

    def apply(self, task: Task, finding: Finding) -> None:
        """Update the part with the result of examining a file."""
        listed, number, look = task
        position, captions = int(listed.position[number]), listed.files.captions
        measured = finding.probe is not None or finding.error is not None
        error = finding.error if measured else self._live.error[position].as_py()
        if error is not None:
            self.bad_files.append((str(look.file), error))
        if finding.times is not None and finding.fingerprint:
            self.frame_times[finding.fingerprint] = finding.times
        values: dict[str, Any] = {
            "root": listed.root,
            "fingerprint": look.known if finding.fingerprint is None else finding.fingerprint,
            "caption": finding.caption if captions is None else captions[number].as_py(),
            "error": error,
            "cut": look.cut,
        }
        if finding.clips:
            self._apply_clips(task, finding, values)
            return
        if position < 0:
            self.new += 1
        elif (
            listed.same_scores[number]
            and self._live.start[position] == listed.files.entries[number].start
            and all(getattr(self._live, name)[position].as_py() == value for name, value in values.items())
        ):
            self.unchanged += 1
            return
        else:
            self.changed += 1
            self._replaced[position] = True
        values |= self._listed_values(listed, number)
        if measured:
            found = finding.probe or probe.Probe(kind_of(values["path"]) or "other")
            values |= found.values() | {"first_frame": 0}
        self._wait(-1 if measured else position, values)

    def _apply_clips(self, task: Task, finding: Finding, values: dict[str, Any]) -> None:
        """Add a row for each clip of a file; the former row of the whole file is retired."""
        listed, number, look = task
        if (whole := int(listed.position[number])) >= 0:
            self._listed[whole] = False
        texts = [look.clip or clip.text for clip in finding.clips]
        uids = uids_of(listed.dataset, [listed.files.entries[number].path] * len(texts), texts)
        for clip, uid, position in zip(finding.clips, uids.tolist(), self._live.find(uids).tolist(), strict=True):
            if position >= 0:
                self._listed[position] = self._replaced[position] = True
                self.changed += 1
            else:
                self.new += 1
            assert finding.probe is not None
            measures = finding.probe.values() | clip._asdict()
            self._wait(-1, values | self._listed_values(listed, number) | measures | {"uid": uid})

    def _wait(self, position: int, values: dict[str, Any]) -> None:
        self._waiting.append((position, values))
        if len(self._waiting) >= _ROWS_PER_BATCH:
            self._flush()

    def _listed_values(self, listed: Listed, number: int) -> dict[str, Any]:
        """Return the columns that depend only on a file's path, folder entry and row in a list."""
        entry = listed.files.entries[number]
        scores: dict[str, Any] = dict.fromkeys(SCORE + name for name in self._scores)
        for name, score in listed.files.scores.items():
            scores[SCORE + name] = None if math.isnan(score[number]) else float(score[number])
        return scores | {
            "ordinal": 0,  # assigned when the part is written
            "uid": int(listed.uid[number]),
            "dataset": listed.dataset,
            "path": entry.path,
            "start": entry.start,
            "size_bytes": entry.size_bytes,
            "mtime_ns": entry.mtime_ns,
            "group": entry.path,
        }

    def _flush(self) -> None:
        """Convert the collected values to Arrow columns, with measures of former rows that are still valid."""
        positions = np.array([p for p, _ in self._waiting if p >= 0], dtype=np.int64)
        former = iter(self._live.take(positions).to_table().to_pylist())
        rows = [(next(former) if p >= 0 else {}) | values for p, values in self._waiting]
        self._batches.append(pa.Table.from_pylist(rows, schema=schema(self._scores)))
        self._waiting = []

    def table(self) -> Any:
        """Return the rows to append, as a table of `SCHEMA` and scores."""
        self._flush()
        return pa.concat_tables(self._batches, promote_options="default").unify_dictionaries()

    def retired(self, datasets: Sequence[str]) -> NDArray[np.int64]:
        """Return the ordinals of rows to retire: changed files, and vanished files of these datasets."""
        scanned = pc.is_in(self._live.dataset.dictionary_decode(), value_set=pa.array(datasets, pa.string()))
        return self._live.ordinal[self._replaced | (as_numpy(scanned) & ~self._listed)]


def uids_of(dataset: str, paths: Sequence[str], clips: Sequence[str] = ()) -> NDArray[np.uint64]:
    """Return the uids of clips: a hash of the dataset's name, the path below its folder and the text of a range."""
    uids = hash_rng.hash64(dataset, hash_rng.text_words(paths))
    at = np.array([i for i, clip in enumerate(clips) if clip], dtype=np.int64)
    uids[at] = hash_rng.hash64(uids[at], hash_rng.text_words([clips[i] for i in at.tolist()]))
    return uids


def _refuse_collision(uid: NDArray[np.uint64], entries: list[SourceFile]) -> None:
    """Refuse two files with the same uid; with ten million files, the probability is 3 in a million."""
    order = np.argsort(uid)
    duplicates = np.flatnonzero(uid[order][1:] == uid[order][:-1])
    if len(duplicates):
        first, second = (entries[order[duplicates[0] + i]].path for i in (0, 1))
        raise UserError(
            f"{first} and {second} have the same uid", code="duplicate-uid", remedy="rename one of the two files"
        )


# Two threads open 3300 files a second; spawning processes takes a second or two for imports.
PROCESSES_FROM = 2000
_FILES_PER_CALL = 32  # of a process, where a call takes as long as two small pictures, or of a cluster
_SECONDS_BETWEEN_REPORTS = 0.2
_CALLS_PER_CPU = 2  # so that a node has the next call when one returns


class ScanProgress(NamedTuple):
    """Number of files examined so far and in total."""

    done: int
    total: int


@dataclass(frozen=True)
class ScanResult:
    """Result of a scan; `found` = `new` + `changed` + `unchanged`."""

    found: int  # number of files but for captions and sidecars, and of rows of lists
    new: int
    changed: int  # number of files whose content, caption, scores or folder differ from their former row
    unchanged: int
    removed: int  # number of rows whose file has vanished
    # Path and reason of each file that cannot be trained on, known ones included.
    bad_files: tuple[tuple[str, str], ...]
    version: int  # of the catalog after the scan
    # Messages about the columns used and ignored of each list, and the sidecars in each folder.
    notes: tuple[str, ...] = ()

    @property
    def bad(self) -> int:
        """Number of files that cannot be trained on."""
        return len(self.bad_files)


def scan_sources(
    sources: Sequence[Source],
    catalog_path: Path,
    *,
    workers: int,
    on_progress: Callable[[ScanProgress], None] | None = None,
    engine: Engine = "local",
) -> ScanResult:
    """Scan folders and lists into a catalog, which is created if missing; its other datasets are not changed.

    Args:
        workers: Number of threads, or of processes if at least `PROCESSES_FROM` files must be opened.
        on_progress: Called a few times a second and once at the end, if any file must be examined.
        engine: "ray" examines the files on all nodes of a Ray cluster, whatever `workers` is; they are listed, and the
            catalog is written, here.
    """
    if engine == "ray":
        with ray_cluster.connect() as cluster:
            examiners = Examiners(_CALLS_PER_CPU * cluster.cpus, is_cluster=True)
            return _scan(sources, catalog_path, examiners, on_progress)
    return _scan(sources, catalog_path, Examiners(workers), on_progress)


class Examiners(NamedTuple):
    """Number of threads that examine files, and whether they call the processes of the connected cluster."""

    threads: int
    is_cluster: bool = False


def _scan(
    sources: Sequence[Source],
    catalog_path: Path,
    examiners: Examiners,
    on_progress: Callable[[ScanProgress], None] | None,
) -> ScanResult:
    _check_names(sources)
    if any(source.cut.startswith(clip_ranges.SCENES) for source in sources):
        scenes.require()
    listings = [_listing(source) for source in sources]
    locked = lock.hold(catalog_path / ".lock", doing="scan", field="catalog", remedy="wait until it has ended")
    with locked, ScanJournal(catalog_path) as journal:
        catalog = Catalog.open_or_new(catalog_path)
        update = Update(catalog)
        pairs = zip(sources, listings, strict=True)
        listed = [update.compare(source.name, source.address, files, source.cut) for source, files in pairs]
        _examine_all(update, listed, examiners, on_progress, journal)
        frame_index.write(catalog_path, update.frame_times)
        retired = update.retired([source.name for source in sources])
        if update.new or update.changed or len(retired):
            named = [{"name": source.name, "root": source.address} for source in sources]
            catalog = catalog.append(update.table(), retired, named)
    return ScanResult(
        found=update.new + update.changed + update.unchanged,
        new=update.new,
        changed=update.changed,
        unchanged=update.unchanged,
        removed=len(retired) - update.changed,
        bad_files=tuple(update.bad_files),
        version=catalog.version,
        notes=tuple(listing.note for listing in listings if listing.note is not None),
    )


def _listing(source: Source) -> Listing:
    if source.list_file is not None:
        return lists.read(source)
    if source.url is not None:
        return remote.list_address(source.name, source.url)
    return list_folder(source.name, source.root.resolve())


def _check_names(sources: Sequence[Source]) -> None:
    names = [source.name for source in sources]
    for source in sources:
        if names.count(source.name) > 1:
            folders = ", ".join(s.url or str(s.root) for s in sources if s.name == source.name)
            raise UserError(
                f"two datasets have the same name: {folders}",
                code="duplicate-dataset-name",
                field="dataset.name",
                value=source.name,
                remedy="give each [[dataset]] its own name, by which clips are identified",
            )


def _known(task: Task, journal: ScanJournal) -> dict[str, Any] | None:
    if not journal.known or not task.look.open or task.look.stated is not None:
        return None
    return journal.get(task.state)


def _examine_all(
    update: Update,
    listed: Sequence[Listed],
    examiners: Examiners,
    on_progress: Callable[[ScanProgress], None] | None,
    journal: ScanJournal,
) -> None:
    """Examine files and apply the results, except those that a scan which was killed has examined already."""
    tasks = (task for files in listed for task in update.tasks(files))
    to_apply, to_examine = itertools.tee((task, _known(task, journal)) for task in tasks)
    looks = (task.look if known is None else task.look._replace(open=False) for task, known in to_examine)
    findings = _find_all(looks, listed, examiners, journal.known)
    total, reported = sum(int(files.look.sum()) for files in listed), time.monotonic()
    for done, ((task, known), finding) in enumerate(zip(to_apply, findings, strict=True), start=1):
        if finding.missing_on and not location.is_missing(task.look.file):
            raise _unseen(task.look.file, finding.missing_on)
        if known is not None and finding.error is None:
            finding = finding._replace(**known)
        elif finding.fingerprint and task.look.stated is None:  # a file that could not be read is tried again
            journal.add(task.state, finding.fingerprint, finding.error, finding.probe, finding.times, finding.clips)
        update.apply(task, finding)
        due = done == total or time.monotonic() - reported >= _SECONDS_BETWEEN_REPORTS
        if on_progress is not None and due:
            reported = time.monotonic()
            on_progress(ScanProgress(done, total))


def _find_all(looks: Iterator[Look], listed: Sequence[Listed], examiners: Examiners, known: int) -> Iterator[Finding]:
    """Yield the findings of all requests, in order; `known` is the number of files that need not be opened any more."""
    each = partial(probe_pool.map_ordered, workers=examiners.threads, crashed=crashed)
    if examiners.is_cluster:
        return each(examine_on_node, looks, processes=RayPool(), chunk_size=_FILES_PER_CALL)
    cuts_scenes = any(
        files.files.entries[i].cut.startswith(clip_ranges.SCENES)
        for files in listed
        for i in np.flatnonzero(files.open)
    )
    many = cuts_scenes or sum(int(files.open.sum()) for files in listed) - known >= PROCESSES_FROM
    if not many:
        return each(examine, looks, processes=None)
    # The scenes of one file take minutes to find.
    return each(examine, looks, processes=WorkerPool(), chunk_size=1 if cuts_scenes else _FILES_PER_CALL)


def _unseen(file: MediaPath, node: str) -> UserError:
    return UserError(
        f"node {node} of the Ray cluster does not see {file}, which is there on this machine",
        code="node-lacks-files",
        field="--engine",
        value="ray",
        remedy="mount the folders of the datasets at the same place on every node, or scan with --engine local",
    )
