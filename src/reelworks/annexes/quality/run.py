"""Measure the clips of a catalog, and make columns of it.

What is measured is kept at once by the content of the clips (`data.catalog.store.kept_measures`), so that a run that is killed goes on
where it was. At the end the values become scores: one new version of the catalog, with a new row for each clip whose values
changed. If nothing is missing, nothing is written.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelworks.annexes.quality import registry, sampling
from reelworks.annexes.quality.measure import ClipPictures, ComparedClips, SampledClip
from reelworks.annexes.quality.networks import Networks, WaitingClip
from reelworks.annexes.quality.sampling import Measurement, MeasureRequest
from reelworks.core import executors, files, machine
from reelworks.core.arrays import U64
from reelworks.core.executors import Executor
from reelworks.data.catalog.scan import probe_pool, scan
from reelworks.data.catalog.store import companions, kept_measures, part_files
from reelworks.data.catalog.store.kept_measures import KeptMeasures, WrittenColumn
from reelworks.data.catalog.store.measured_columns import Column
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.media import location
from reelworks.data.run import lock
from reelworks.data.run.lock import LockHandle

_SECONDS_BETWEEN_WRITES, _SECONDS_BETWEEN_REPORTS = 5.0, 0.2
_CLIPS_PER_CALL = 4
TIMEOUT_SECONDS = 600.0  # a class may load a network first
_REMEDY = "wait until it has ended"
_Kinds = Mapping[str, type[Any]]  # classes of measures by their entries
OnClips = Callable[[int, int], None]  # is given the number of clips measured so far and in total


@dataclass(frozen=True)
class ColumnSummary:
    """Distribution of a measured column over the clips of a catalog.

    Attributes:
        unit: Unit of its values.
        meaning: What they say.
        present: Number of clips that have a value.
        low, median, high: Values at the 10th, 50th and 90th percentile; None without any value.
    """

    name: str
    unit: str
    meaning: str
    present: int
    low: float | None
    median: float | None
    high: float | None

    @classmethod
    def of_rows(cls, rows: CatalogRows, column: Column) -> ColumnSummary:
        """Summarise a column over rows."""
        values = rows.score(column.name)
        present = values[~np.isnan(values)]
        shares = (0.1, 0.5, 0.9)
        quantiles = np.quantile(present, shares, overwrite_input=True).tolist() if len(present) else [None] * 3
        return cls(column.name, column.unit, column.meaning, len(present), *quantiles)


@dataclass(frozen=True)
class MeasureResult:
    """Result of measuring the clips of a catalog."""

    clips: int  # clips that can be read
    measured: int  # clips that were decoded now; one of several with the same content
    changed: int  # rows whose values changed
    failed: tuple[tuple[str, str], ...]  # clip and reason of each that could not be measured completely
    columns: tuple[ColumnSummary, ...]
    version: int  # of the catalog now
    notes: tuple[str, ...] = ()  # about scores of lists that were left as they are


def measure_catalog(
    path: str | Path,
    names: Sequence[str] = (),
    *,
    workers: int = 0,
    field: str = "--only",
    on_progress: OnClips | None = None,
    engine: str = executors.LOCAL,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> MeasureResult:
    """Measure what is missing in a catalog, and write the values as its scores.

    Args:
        path: Folder of the catalog.
        names: Names of measures, or entries that name classes; none stands for all that are registered.
        workers: Number of processes of this machine that decode; 0 for one on each core.
        field: Option or key that the names come from.
        on_progress: Called a few times a second while clips are measured.
        engine: Engine whose workers decode.
        timeout_seconds: Time for one clip, after which its process is ended and its measures stay missing.

    Raises:
        UserError: There is no catalog, a name or the engine is unknown, or another process measures or scans this catalog.
    """
    path, measures = Path(path), registry.all_named(names or registry.names(), field)
    connection = executors.connect(engine, workers)
    Catalog.open(path)  # otherwise the lock would make the folder
    folder = path / kept_measures.NAME
    with (
        files.writing("catalog", path),
        lock.hold(folder / ".lock", doing="measuring", field="catalog", remedy=_REMEDY) as measuring,
    ):
        catalog = Catalog.open(path)
        wanted, failed = _columns_of(measures, part_files.identity(catalog.parts)), list[tuple[str, str]]()
        # If nothing is missing, no clip is looked at, which takes a minute for millions.
        if wanted.items() <= kept_measures.written_columns(path).items():
            measured, changed = 0, 0
        else:
            keyed, kept = _Keyed.open(catalog, measures), KeptMeasures(path)
            known = _kept_values(measures, keyed, kept)
            pending = _pending(keyed, measures, known)
            measured = len(pending.rows)
            single = {entry: kind for entry, kind in measures.items() if not registry.compares(kind)}
            # What is measured now is read again, and what is compared is read where it is.
            known = {} if measured else {entry: known[entry] for entry in single}
            if measured:
                failed = _measure_all(pending, kept, measuring, connection, on_progress, engine, timeout_seconds)
            with lock.hold(path / ".lock", doing="scan", field="catalog", remedy=_REMEDY) as held:
                newest = Catalog.open(path)
                if newest.parts != catalog.parts:  # a scan found other clips meanwhile
                    keyed, known = _Keyed.open(newest, measures), {}
                known = known or _kept_values(single, keyed, kept)
                written, changed, not_compared = _write_scores(newest, keyed, measures, known, kept, held)
                compared = {entry: kind for entry, kind in measures.items() if entry not in not_compared}
                before = catalog if newest.parts == catalog.parts else None
                _remember(before, written, compared, is_complete=not failed)
            catalog = written
            failed += [("all clips", problem) for problem in not_compared.values()]
    live = _readable(catalog.live())
    columns = [column for kind in measures.values() for column in kind.columns]
    with ThreadPoolExecutor(machine.cores()) as threads:  # each reads and sorts a column of millions of clips
        summaries = [*threads.map(partial(ColumnSummary.of_rows, live), columns)]
    notes = tuple(_notes(catalog, measures))
    return MeasureResult(len(live), measured, changed, tuple(failed), tuple(summaries), catalog.version, notes)


def _columns_of(measures: _Kinds, complete_in: str) -> dict[str, WrittenColumn]:
    return {
        column: WrittenColumn(label, entry, complete_in)
        for entry, kind in measures.items()
        for column, label in registry.column_labels(kind).items()
    }


def _remember(before: Catalog | None, after: Catalog, measures: _Kinds, *, is_complete: bool) -> None:
    """Remember what the columns of these measures were written from; others that were complete in `before` still are."""
    known, now = kept_measures.written_columns(after.path), ""
    if before is not None:
        former, now = part_files.identity(before.parts), part_files.identity(after.parts)
        known = {name: c._replace(complete_in=now) if c.complete_in == former else c for name, c in known.items()}
    kept_measures.remember_columns(after.path, known | _columns_of(measures, now if is_complete else ""))


def _readable(rows: CatalogRows) -> CatalogRows:
    rows = companions.without(rows)
    return rows if rows.readable.all() else rows.take(rows.readable)


class _Keyed(NamedTuple):
    """Readable clips, with the keys of their contents, and of their contents with their captions if a measure reads these."""

    rows: CatalogRows
    keys: U64
    caption_keys: U64

    @classmethod
    def open(cls, catalog: Catalog, measures: _Kinds) -> _Keyed:
        rows = _readable(catalog.live())
        keys, by_caption = kept_measures.keys_of(rows), any(map(_of_caption, measures.values()))
        return cls(rows, keys, kept_measures.keys_of_captions(rows) if by_caption else keys)


class _ToMeasure(NamedTuple):
    """Clips to measure: one row for each content that lacks a measure, those of a file beside each other.

    Attributes:
        among: The clips of the catalog, whose indices `rows` are.
        keys: Of the contents.
        caption_keys: Of the contents with their captions, under which what depends on these is kept.
        missing: Mask `[N, measures]` of the measures that each lacks.
        kinds: The measures by their entries.
    """

    among: CatalogRows
    rows: NDArray[np.int64]
    keys: U64
    caption_keys: U64
    missing: NDArray[np.bool_]
    kinds: _Kinds

    def entries(self, index: int, *, of_networks: bool) -> tuple[str, ...]:
        """Return the entries of measures that a clip lacks, of those that run networks or of the others."""
        lacking = zip(self.kinds.items(), self.missing[index].tolist(), strict=True)
        return tuple(e for (e, kind), lacks in lacking if lacks and registry.runs_network(kind) == of_networks)


def _kept_values(measures: _Kinds, clips: _Keyed, kept: KeptMeasures) -> dict[str, Any]:
    """Return the kept values of measures by entry, `[N, labels]`, masked where there are none, read at once for equal keys."""
    found = {}
    for of_caption in (False, True):
        labels = {entry: registry.labels(kind) for entry, kind in measures.items() if _of_caption(kind) == of_caption}
        if labels:
            keys = clips.caption_keys if of_caption else clips.keys
            columns = kept.values([*itertools.chain(*labels.values())], keys)
            for entry, names in labels.items():
                found[entry], columns = columns[:, : len(names)], columns[:, len(names) :]
    return found


def _pending(clips: _Keyed, measures: _Kinds, known: Mapping[str, Any]) -> _ToMeasure:
    missing = np.stack([known[entry].mask.any(axis=1) for entry in measures], axis=1)
    needed = np.flatnonzero(missing.any(axis=1))
    needed = needed[np.unique(clips.caption_keys[needed], return_index=True)[1]]
    some = clips.rows.take(needed)  # of whose columns no more is read
    paths, first = some.path.to_pylist(), some.first_frame
    order = needed[np.array(sorted(range(len(needed)), key=lambda i: (paths[i], first[i])), dtype=np.int64)]
    return _ToMeasure(clips.rows, order, clips.keys[order], clips.caption_keys[order], missing[order], measures)


def _of_caption(kind: type[Any]) -> bool:
    return "caption" in kind.reads


def _requests(pending: _ToMeasure) -> Iterator[MeasureRequest]:
    rows = pending.among
    for index, row in enumerate(pending.rows.tolist()):
        of_networks = pending.entries(index, of_networks=True)
        height, width, num_frames = int(rows.height[row]), int(rows.width[row]), int(rows.num_frames[row])
        clip = SampledClip(rows.file(row), bool(rows.is_image[row]), height, width, num_frames, float(rows.fps[row]))
        yield MeasureRequest(
            clip,
            int(rows.first_frame[row]),
            bool(rows.has_sound[row]),
            pending.entries(index, of_networks=False),
            max((pending.kinds[entry].pictures_px for entry in of_networks), default=0),
            (int(rows.size_bytes[row]), int(rows.mtime_ns[row]), rows.fingerprint[row].as_py()),
        )


def _measure_all(
    pending: _ToMeasure,
    kept: KeptMeasures,
    measuring: LockHandle,
    connection: AbstractContextManager[Executor],
    on_progress: OnClips | None,
    engine: str,
    timeout_seconds: float,
) -> list[tuple[str, str]]:
    """Measure the pending clips and keep what is found; return the clips that failed, with the reasons."""
    with connection as executor:
        found = probe_pool.map_ordered(
            sampling.measure,
            _requests(pending),
            workers=executor.calls_at_once,
            processes=executor.pool(),
            failed=sampling.failed,
            most_seconds=lambda chunk: timeout_seconds,
            name=lambda request: request.clip.path,
            chunk_size=_CLIPS_PER_CALL,
        )
        return _collect(pending, kept, measuring, found, on_progress, engine)


def _collect(
    pending: _ToMeasure,
    kept: KeptMeasures,
    measuring: LockHandle,
    found: Iterator[Measurement],
    on_progress: OnClips | None,
    engine: str,
) -> list[tuple[str, str]]:
    rows, failed = pending.among, list[tuple[str, str]]()
    waiting: dict[int, dict[str, float | bytes]] = {}
    networks = Networks({entry: kind for entry, kind in pending.kinds.items() if registry.runs_network(kind)})
    of_caption = {name for kind in pending.kinds.values() if _of_caption(kind) for name in registry.labels(kind)}
    written = reported = time.monotonic()

    def take(index: int, values: Mapping[str, float | bytes], problems: Sequence[str]) -> None:
        failed.extend((rows.label(pending.rows[index]), problem) for problem in problems)
        for name, value in values.items():
            keys = pending.caption_keys if name in of_caption else pending.keys
            waiting.setdefault(int(keys[index]), {})[name] = value

    def keep() -> None:
        measuring.check()
        kept.add(list(waiting), list(waiting.values()))
        waiting.clear()

    try:
        for index, one in enumerate(found):
            row = int(pending.rows[index])
            if one.missing_on and not location.is_missing(rows.file(row)):
                raise scan.unseen(rows.file(row), one.missing_on, engine)
            take(index, one.values, one.problems)
            if one.pictures is not None:
                pictures = ClipPictures(one.pictures, rows.caption[row].as_py() or "")
                for each in networks.add(WaitingClip(index, pictures, pending.entries(index, of_networks=True))):
                    take(*each)
            now, done = time.monotonic(), index + 1
            if now - written >= _SECONDS_BETWEEN_WRITES:
                keep()
                written = now
            if on_progress is not None and (done == len(pending.rows) or now - reported >= _SECONDS_BETWEEN_REPORTS):
                on_progress(done, len(pending.rows))
                reported = now
        for each in networks.rest():
            take(*each)
    finally:  # Ctrl-C loses nothing
        keep()
    return failed


def _of_lists(catalog: Catalog, rows: CatalogRows) -> dict[str, frozenset[str]]:
    """Return the names of the scores that lists give, by dataset."""
    present = (name for name in rows.dataset.dictionary.to_pylist() if rows.of_datasets([name]).any())
    return {name: catalog.list_scores(name) for name in present}


def _notes(catalog: Catalog, measures: _Kinds) -> list[str]:
    """Tell which scores of lists stand in place of measured ones."""
    names = {column.name for kind in measures.values() for column in kind.columns}
    return [
        f"dataset {dataset}: its list's own {', '.join(sorted(taken))} stay as they are"
        for dataset, own in _of_lists(catalog, _readable(catalog.live())).items()
        if (taken := own & names)
    ]


def _write_scores(
    catalog: Catalog, clips: _Keyed, measures: _Kinds, known: Mapping[str, Any], kept: KeptMeasures, held: LockHandle
) -> tuple[Catalog, int, dict[str, str]]:
    """Write the kept values as scores of the live rows.

    Returns the catalog, the number of changed rows, and the problems of measures that compare clips, whose columns stay, by
    entry.
    """
    problems: dict[str, str] = {}
    rows = clips.rows
    scores: dict[str, NDArray[np.float64]] = {}
    changed = np.zeros(len(rows), dtype=np.bool_)
    for entry, kind in measures.items():
        try:
            found = _compared(entry, kind, clips, kept, catalog) if registry.compares(kind) else known[entry].data
        except _NotComparedError as error:
            problems[entry] = f"{kind.name}: {error}"
            continue
        for column, values in zip(kind.columns, found.T, strict=True):
            if column.name not in rows.scores:
                scores[column.name], changed = values, changed | ~np.isnan(values)
                continue
            former = rows.scores[column.name]
            of_list = rows.of_datasets(catalog.lists_with(column.name))
            values[of_list] = former[of_list]
            scores[column.name] = values
            changed |= ~((values == former) | (np.isnan(values) & np.isnan(former)))
    at = np.flatnonzero(changed)
    if not len(at) and not scores.keys() <= rows.scores.keys():
        at = np.arange(min(len(rows), 1))  # a column that no clip has a value in is there, too
    if len(at):
        sources = [_source(catalog, rows, name, own) for name, own in _of_lists(catalog, rows).items()]
        held.check()
        catalog = catalog.append_scores(rows, at, scores, sources)
    return catalog, int(changed.sum()), problems


class _NotComparedError(Exception):
    """The class of a measure failed to compare clips; the message says how."""


def _compared(entry: str, kind: type[Any], clips: _Keyed, kept: KeptMeasures, catalog: Catalog) -> NDArray[np.float64]:
    """Return the values of a measure that compares clips, `[N, columns]`; NaN where they are missing."""
    rows = clips.rows
    features, has = kept.features(registry.labels(kind)[0], clips.keys, kind.feature_bytes)
    some = slice(None) if has.all() else has  # of millions, nothing is copied that need not be
    of_lists = [rows.of_datasets(catalog.lists_with(column.name)) for column in kind.columns]
    scores = [rows.score(column.name) for column in kind.columns]
    former = np.where(of_lists, np.nan, scores).T[some]
    # Neither column stays in memory; of no rows there are no parts.
    pixels = [h * w for h, w in zip(rows.chunks("height"), rows.chunks("width"), strict=True)] or [rows.height]
    compared = ComparedClips(features, np.concatenate(pixels)[some], rows.num_frames[some], rows.uid[some], former)
    try:
        measure: Any = kind if registry.runs_network(kind) else registry.instance(entry)
        found = measure.compare(compared)
        values = np.full((len(rows), len(kind.columns)), np.nan)
        values[some] = found
    except Exception as error:  # a class of a user may raise anything, and return anything
        raise _NotComparedError(f"{type(error).__name__}: {error}") from error
    return np.where(np.isfinite(values), values, np.nan)


def _source(catalog: Catalog, rows: CatalogRows, name: str, of_list: frozenset[str]) -> dict[str, str]:
    """Return a dataset's entry among the sources of the new part, from which a later scan learns what is of its list."""
    known = catalog.source(name) or {"root": rows.root[int(np.flatnonzero(rows.of_datasets([name]))[0])].as_py()}
    return known | {"name": name, "scores": " ".join(sorted(of_list))}
