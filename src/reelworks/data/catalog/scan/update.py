"""Collect the next part of a catalog: compare listed files with their live rows, and apply what a scan finds in them."""

from __future__ import annotations

import math
import posixpath
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core import digests, hash_rng, units
from reelworks.core.errors import UserError
from reelworks.data.catalog.scan import clip_ranges, probe_pool
from reelworks.data.catalog.scan.caption_names import NO_FILES
from reelworks.data.catalog.scan.examine import FileRequest, Finding
from reelworks.data.catalog.scan.source_files import NO_TARGET, STATE, Listing, SourceFile
from reelworks.data.catalog.store import integrity, kept_measures
from reelworks.data.catalog.store.schema import SCORE, as_numpy, with_scores
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.media import location, probe, storages
from reelworks.data.media.formats import is_archive, is_sound, kind_of
from reelworks.data.media.frame_index import PackedTimes

_ROWS_PER_BATCH = 8192  # rows collected as Python values before they are converted to Arrow arrays
_NOT_READ = "content that the storage did not give, so that its rows stay"
_LEFT_WHOLE = "the frames of an animated picture, which is left whole: convert it to MP4 to cut it"


class Listed(NamedTuple):
    """A dataset's files and their live rows; arrays have one element for each file."""

    dataset: str
    root: str  # absolute path or address of the dataset's folder
    files: Listing
    uid: NDArray[np.uint64]
    position: NDArray[np.int64]  # indices of the live rows, -1 for new files
    open: NDArray[np.bool_]  # mask of files that must be opened, because their row may be out of date
    look: NDArray[np.bool_]  # mask of files to examine: those to open, and those whose caption file must be read
    cut: str = ""  # how videos are cut


class Task(NamedTuple):
    """One listed file with the request to examine it; `number` is its index in `listed`."""

    listed: Listed
    number: int
    request: FileRequest


class Update:
    """The next part of a catalog while it is being collected.

    Attributes:
        catalog: The catalog before the update.
        new, changed, unchanged: Number of files without a live row, with an outdated and with a valid one.
        bad_files: Path and reason of each file that cannot be trained on.
        frame_times: Frame times of long videos by fingerprint.
        noted: Paths of files by what a person should know of them.
        replaced: Mask of the live rows that have a new one in their place, also for unchanged files that were touched.
        outdated: Names of datasets whose files an earlier version has measured.
        crashes: Whether a file is to be opened on which a decoder has crashed.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.new = self.changed = self.unchanged = 0
        self.bad_files: list[tuple[str, str]] = []
        self.frame_times: dict[str, PackedTimes] = {}
        self.outdated: set[str] = set()
        self.crashes = False
        self.noted: defaultdict[str, list[str]] = defaultdict(list)
        self._live = catalog.live()
        self._scores: dict[str, None] = dict.fromkeys(self._live.scores)  # an ordered set of names
        self._of_lists: dict[str, frozenset[str]] = {}  # names of scores that a dataset's list gave, or gives now
        self._listed = np.zeros(len(self._live), dtype=np.bool_)
        self.replaced = np.zeros(len(self._live), dtype=np.bool_)
        self._waiting: list[tuple[int, dict[str, Any]]] = []  # index of the live row with the measures (or -1), values
        self._batches: list[Any] = []

    def compare(self, dataset: str, root: str, files: Listing, cut: str = "") -> Listed:
        """Find the live rows of a dataset's files, and the files to examine.

        If a list has the captions, rows of unchanged files are brought up to date at once. If videos are `cut`,
        unchanged ones are replaced by their clips.
        """
        source = self.catalog.source(dataset)
        outdated = source is not None and source.get("reader") != str(probe.VERSION)
        if outdated:
            self.outdated.add(dataset)
        if cut:
            former = self._live.take(np.zeros(0, dtype=np.int64)) if outdated else self._live
            files = clip_ranges.expand(files, former, dataset, cut)
        entries = files.entries
        self._require_targets(dataset, entries)
        self._scores |= dict.fromkeys(files.scores)
        uid = uids_of(dataset, [entry.path for entry in entries], [entry.clip for entry in entries])
        position = self._live.find(uid)
        _refuse_collision(uid, entries)
        known = np.flatnonzero(position >= 0)
        row = position[known]
        self._listed[row] = True
        is_current = np.ones(len(row), dtype=np.bool_)
        for name in STATE:
            now = np.fromiter((getattr(entry, name) for entry in entries), dtype=np.int64, count=len(entries))
            is_current &= self._live.column(name)[row] == now[known]
        # Without a fingerprint the file could not be read, which may change without a new time of change.
        is_current &= as_numpy(pc.not_equal(self._live.fingerprint, ""))[row]
        if any(entry.cut for entry in entries) or self._live.is_range.any():
            cuts = zip(self._live.cut.take(pa.array(row)).to_pylist(), known.tolist(), strict=True)
            is_current &= np.array([was == entries[i].cut for was, i in cuts], dtype=np.bool_)
        if outdated:
            is_current &= np.array([entries[i].stated is not None for i in known.tolist()], dtype=np.bool_)
        told = np.flatnonzero(is_current & (self._live.content_keys()[row] == digests.NO_CONTENT))
        for i in told.tolist():
            entry = entries[known[i]]
            is_current[i] = entry.stated is not None and _state(entry) == self._live.value("fingerprint", row[i])
        former_errors = self._live.error.take(pa.array(row[~is_current]))
        self.crashes |= bool(pc.any(pc.equal(former_errors, probe_pool.CRASHED)).as_py())
        open_ = np.ones(len(entries), dtype=np.bool_)
        open_[known] = ~is_current
        self._of_lists[dataset] = self.catalog.list_scores(dataset) | files.scores.keys()
        look = open_ if files.captions is not None else np.ones(len(entries), dtype=np.bool_)
        listed = Listed(dataset, root, files, uid, position, open_, look, cut)
        if files.captions is not None:
            self._update_listed(listed, np.flatnonzero(~look))
        return listed

    def _require_targets(self, dataset: str, entries: Sequence[SourceFile]) -> None:
        """Refuse a link to a folder that is not there, and had clips."""
        for entry in entries:
            if entry.problem != NO_TARGET or kind_of(entry.path) is not None:
                continue
            rows = np.flatnonzero(as_numpy(pc.starts_with(self._live.path, f"{entry.path}/")))
            if any(self._live.readable[row] and self._live.dataset_name(row) == dataset for row in rows.tolist()):
                raise UserError(
                    f"{entry.path} is {NO_TARGET}, and had clips behind it",
                    code="folder-unreadable",
                    field=f"dataset {dataset!r}",
                    remedy="mount what it leads to, or delete the link",
                )

    def _same_scores(self, listed: Listed, number: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the files of these numbers whose live rows have exactly the scores of the list; others were measured."""
        same = np.ones(len(number), dtype=np.bool_)
        for name in self._of_lists[listed.dataset]:
            was, now = (
                column[name][at] if name in column else np.full(len(at), np.nan)
                for column, at in ((self._live.scores, listed.position[number]), (listed.files.scores, number))
            )
            same &= (was == now) | (np.isnan(was) & np.isnan(now))
        return same

    def _update_listed(self, listed: Listed, number: NDArray[np.int64]) -> None:
        """Update the rows of files that need no examination, where the list differs from them."""
        row, files = listed.position[number], listed.files
        error = self._live.error.take(pa.array(row))
        for i in np.flatnonzero(error.is_valid()).tolist():
            self.bad_files.append((f"{listed.root}/{files.entries[number[i]].path}", error[i].as_py()))
        captions, was = files.captions.take(pa.array(number)), self._live.caption.take(pa.array(row))
        same_captions = pc.fill_null(pc.equal(was, captions), pc.and_(pc.is_null(was), pc.is_null(captions)))
        same_root = pc.equal(self._live.root.take(pa.array(row)).cast(pa.string()), listed.root)
        same = self._same_scores(listed, number) & as_numpy(pc.and_(same_captions, same_root))
        self.unchanged += int(same.sum())
        differs = np.flatnonzero(~same)
        if len(differs):
            scores = {name: score[number[differs]] for name, score in files.scores.items()}
            captions = captions.take(pa.array(differs))
            roots = pa.DictionaryArray.from_arrays(np.zeros(len(differs), dtype=np.int32), [listed.root])
            retold = self._live.take(row[differs]).replaced(scores, caption=captions, root=roots)
            self._batches.append(retold.to_table())
            self.replaced[row[differs]] = True
            self.changed += len(differs)

    def tasks(self, listed: Listed) -> Iterator[Task]:
        """Yield the files to examine one by one, since ten million tasks would take too much memory.

        The clips of a file are together, and the files of a folder, which is listed for captions once then.
        """
        read_captions, numbers = listed.files.captions is None, np.flatnonzero(listed.look)
        paths = [listed.files.entries[i].path for i in numbers.tolist()]
        words = map(hash_rng.text_words, (paths, [posixpath.dirname(path) for path in paths]))
        found = (np.unique(of, return_index=True, return_inverse=True) for of in words)
        for i in numbers[np.lexsort([first[of_number] for _, first, of_number in found])].tolist():
            entry, position = listed.files.entries[i], int(listed.position[i])
            opened = bool(listed.open[i])
            # A clip, a file that was cut before, and what an earlier version measured is measured even if its content is known.
            anew = entry.cut or listed.dataset in self.outdated or (position >= 0 and self._live.cut[position].as_py())
            known = self._live.fingerprint[position].as_py() if position >= 0 and not (opened and anew) else ""
            file = location.below(listed.root, entry.path, entry.start, entry.size_bytes, entry.mtime_ns)
            captions = entry.captions if read_captions else NO_FILES
            stated = (entry.stated, _state(entry), entry.cut, entry.clip, entry.size_bytes)
            yield Task(listed, i, FileRequest(file, captions, opened, known, entry.problem, *stated))

    def apply(self, task: Task, finding: Finding) -> None:
        """Update the part with the result of examining a file, whose caption is settled."""
        listed, number, request = task
        position, captions = int(listed.position[number]), listed.files.captions
        measured = finding.probe is not None or finding.error is not None
        error = finding.error if measured else self._live.error[position].as_py()
        if error is not None and error.startswith(storages.UNREACHED) and self._keep(listed, request, number):
            self.noted[_NOT_READ].append(f"{request.file}: {error}")
            return
        if error is not None:
            self.bad_files.append((str(request.file), error))
        for note in () if finding.probe is None else finding.probe.notes:
            self.noted[note].append(str(request.file))
        if listed.cut and finding.probe is not None and finding.probe.kind == "video" and not request.cut:
            self.noted[_LEFT_WHOLE].append(str(request.file))
        if finding.times is not None and finding.fingerprint:
            self.frame_times[finding.fingerprint] = finding.times
        values: dict[str, Any] = {
            "root": listed.root,
            "fingerprint": request.known if finding.fingerprint is None else finding.fingerprint,
            "caption": finding.caption if captions is None else captions[number].as_py(),
            "error": error,
            "cut": request.cut,
        }
        if finding.clips:
            self._apply_clips(task, finding, values)
            return
        probed = {} if finding.probe is None else finding.probe.values()
        if self._stays(position, listed, number, values | probed):
            return
        values |= self._listed_values(listed, number)
        if measured:
            is_damaged_sound = request.problem is None and is_sound(values["path"])
            found = finding.probe or probe.Probe("sound" if is_damaged_sound else kind_of(values["path"]) or "other")
            values |= found.values() | {"first_frame": 0}
        self._wait(-1 if measured else position, values)

    def _apply_clips(self, task: Task, finding: Finding, values: dict[str, Any]) -> None:
        """Add a row for each clip of a file; the former row of the whole file is retired."""
        listed, number, request = task
        if (whole := int(listed.position[number])) >= 0:
            self._listed[whole] = False
        texts = [request.clip or clip.text for clip in finding.clips]
        uids = uids_of(listed.dataset, [listed.files.entries[number].path] * len(texts), texts)
        for clip, uid, position in zip(finding.clips, uids.tolist(), self._live.find(uids).tolist(), strict=True):
            assert finding.probe is not None
            measures = finding.probe.values() | clip._asdict()
            if not self._stays(position, listed, number, values | measures):
                self._wait(-1, values | self._listed_values(listed, number) | measures | {"uid": uid})

    def _keep(self, listed: Listed, request: FileRequest, number: int) -> bool:
        """Leave the rows of a file, or of the members of an archive, that is not read now; return whether any can be trained on."""
        path, paths = listed.files.entries[number].path, self._live.path
        if is_archive(path):
            rows = np.flatnonzero(as_numpy(pc.or_(pc.equal(paths, path), pc.starts_with(paths, f"{path}/"))))
        else:
            (order, words), word = self._by_path, hash_rng.text_words([path])
            rows = order[np.searchsorted(words, word)[0] : np.searchsorted(words, word, side="right")[0]]
        if request.clip:  # one of several rows of a list
            rows = rows[rows == listed.position[number]]
        rows = rows[np.array([self._live.dataset_name(row) == listed.dataset for row in rows.tolist()], dtype=np.bool_)]
        if not self._live.readable[rows].any():
            return False
        self._listed[rows] = True
        self.unchanged += len(rows)
        return True

    @cached_property
    def _by_path(self) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        words = self._live.text_words("path")
        order = np.argsort(words, kind="stable")
        return order, words[order]

    def _stays(self, position: int, listed: Listed, number: int, values: dict[str, Any]) -> bool:
        """Count a clip as new, changed or unchanged, and return whether its live row stays: it tells the file as it is now."""
        if position < 0:
            self.new += 1
            return False
        self._listed[position] = True
        now = self._listed_values(listed, number)
        values = values | {SCORE + name: now[SCORE + name] for name in self._of_lists[listed.dataset]}
        is_same = all(self._live.value(name, position) == value for name, value in values.items())
        self.unchanged += is_same
        self.changed += not is_same
        stays = is_same and all(self._live.value(name, position) == now[name] for name in STATE)
        self.replaced[position] = not stays
        return stays

    def _wait(self, position: int, values: dict[str, Any]) -> None:
        # Half of a surrogate pair, which JSON and metadata may have, cannot be stored, and becomes "?".
        storable = {n: v.encode(errors="replace").decode() if isinstance(v, str) else v for n, v in values.items()}
        self._waiting.append((position, storable))
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
        table = pa.Table.from_pylist(rows, schema=with_scores(self._scores))
        if problems := integrity.problems(table):  # a file with such measures is damaged, whatever its decoder says
            for at, problem in problems.items():
                rows[at] |= probe.Probe(kind_of(rows[at]["path"]) or "other").values() | {"first_frame": 0}
                rows[at] |= {name: None for name in table.column_names if name.startswith(SCORE)} | {"error": problem}
                self.bad_files.append((f"{rows[at]['root']}/{rows[at]['path']}", problem))
            table = pa.Table.from_pylist(rows, schema=with_scores(self._scores))
        self._batches.append(table)
        self._waiting = []

    def table(self, datasets: Sequence[str]) -> Any:
        """Return the rows to append, as a table of `SCHEMA` and scores, with what was measured in the same content."""
        self._flush()
        rows = pa.concat_tables(self._batches, promote_options="default").unify_dictionaries()
        of_lists = {name: self.catalog.list_scores(name) for name in self._live.dataset.dictionary.to_pylist()}
        retired = np.flatnonzero(self.replaced | self._vanished(datasets))
        labels = {name: column.label for name, column in kept_measures.written_columns(self.catalog.path).items()}
        own = of_lists | self._of_lists
        return kept_measures.carried(rows, self._live, retired, own, self.catalog.path, labels)

    def notes(self) -> list[str]:
        """Return what a person should know of files that were opened, one line for all with the same."""
        again = f"files of {', '.join(sorted(self.outdated))} were opened again: an earlier version had measured them otherwise"
        return [again] * bool(self.outdated) + [
            f"{units.plural(len(of), 'file')} with {note}; the first is {of[0]}" for note, of in self.noted.items()
        ]

    def retired(self, datasets: Sequence[str]) -> NDArray[np.int64]:
        """Return the ordinals of rows to retire: changed files, and vanished files of these datasets."""
        return self._live.ordinal[self.replaced | self._vanished(datasets)]

    def _vanished(self, datasets: Sequence[str]) -> NDArray[np.bool_]:
        scanned = pc.is_in(self._live.dataset.dictionary_decode(), value_set=pa.array(datasets, pa.string()))
        return as_numpy(scanned) & ~self._listed


def _state(entry: SourceFile) -> str:
    """Return what stands for the content of a file that is not opened: what a trusted list states, and its state."""
    stated = "" if entry.stated is None else digests.digest_bytes(repr(entry.stated).encode())[:8] + ":"
    return f"{stated}{entry.size_bytes:x}-{entry.mtime_ns:x}" + (f"-{entry.start:x}" if entry.start >= 0 else "")


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
