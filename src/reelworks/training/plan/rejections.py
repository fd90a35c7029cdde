"""List the clips that an epoch leaves out: their number by reason, some by name, all of them in a file.

Repeats of a clip count once, and not at all if one of them is trained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, parquet

from reelworks.core import files, units
from reelworks.core.errors import UserError
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.query import filter_failures
from reelworks.data.catalog.store.rows import LABEL_COLUMNS, CatalogRows
from reelworks.data.catalog.store.rows import labels as labels_of
from reelworks.data.catalog.store.schema import as_numpy
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import segment_record
from reelworks.data.loader.left_out import Rejection
from reelworks.data.loader.plan_cache import Unplanned
from reelworks.data.loader.segment_record import LABELS
from reelworks.data.media import decode
from reelworks.data.run import records
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.records import RecordError
from reelworks.training.recipe.dataset import RecipeData

_NAMED = ("dataset", "path", "first_frame", "num_frames", "height", "width", "error")
FILES_NAMED = 1000  # most clips listed for each reason
_PARTS_COUNTED = 20
_MOST_TOLD = 10  # clips that a start of training or encoding names


def _write_text(table: Any, target: Any) -> None:
    """Write a line for each clip: path, reason and error, between tabs."""
    for clip in table.to_pylist():
        words = [clip["path"], clip["reason"], *filter(None, [clip["error"]])]
        target.write(("\t".join(" ".join(word.splitlines()) for word in words) + "\n").encode())


def _write_json_lines(table: Any, target: Any) -> None:
    for clip in table.to_pylist():
        target.write((json.dumps(clip, ensure_ascii=False) + "\n").encode())


_WRITERS: dict[str, Callable[[Any, Any], None]] = {
    ".parquet": parquet.write_table,
    ".csv": csv.write_csv,
    ".jsonl": _write_json_lines,
    ".txt": _write_text,
}


@dataclass(frozen=True)
class LeftOut:
    """Clips that an epoch leaves out for one reason.

    Attributes:
        nearest: For clips that fit no bucket, their number by the nearest entry.
        failed: For clips that a filter leaves out, their number by the parts of it that they fail, the most frequent first.
    """

    clips: int
    nearest: dict[str, int]
    failed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOutClip:
    """A clip that an epoch leaves out, as "dataset/path", with details of the reason."""

    path: str
    detail: str


def counts(data: RecipeData, rejections: list[Rejection]) -> dict[str, LeftOut]:
    """Return the number of clips by reason, and for clips that fit no bucket also by nearest entry."""
    by_reason = {}
    for r in rejections:
        missed = r.nearest[r.nearest >= 0] if not r.reason.is_duplicate else r.nearest[:0]
        entry, number = np.unique(missed, return_counts=True)
        nearest = dict(zip([str(data.table.entries[i]) for i in entry.tolist()], number.tolist(), strict=True))
        failed: dict[str, int] = {}
        if r.reason == Reason.FILTERED:  # by the parts of the filters that they fail, the most frequent ones
            parts = data.failed_filters.take(pa.array(r.row))
            of_part = np.bincount(as_numpy(parts.indices), minlength=len(parts.dictionary))
            order = np.argsort(-of_part, kind="stable")[:_PARTS_COUNTED]
            texts = parts.dictionary.take(pa.array(order)).to_pylist()
            failed = dict(zip(texts, of_part[order].tolist(), strict=True))
        by_reason[r.reason.label] = LeftOut(len(r.row), nearest, failed)
    return by_reason


def named(data: RecipeData, rejections: list[Rejection]) -> dict[str, list[LeftOutClip]]:
    """Return the first clips of each reason in the catalog's order, at most `FILES_NAMED`, by path and with details."""
    if not rejections:
        return {}
    rows = np.unique(np.concatenate([r.row[:FILES_NAMED] for r in rejections]))
    few = data.rows.take(rows)  # only their texts are read
    filtered = any(r.reason == Reason.FILTERED for r in rejections)
    failed = filter_failures.details_by_part(few, data.failed_filters.take(pa.array(rows))) if filtered else []
    by_reason = {}
    for r in rejections:
        first = zip(r.row[:FILES_NAMED].tolist(), r.nearest.tolist(), strict=False)
        explained = []
        for row, near in first:
            place = int(np.searchsorted(rows, row))
            detail = failed[place] if r.reason == Reason.FILTERED else _explain(data, few, r.reason, place, row, near)
            explained.append(LeftOutClip(few.label(place), detail))
        by_reason[r.reason.label] = sorted(explained, key=lambda clip: clip.path)
    return by_reason


def lines(left_out: Mapping[str, LeftOut], reasons: Mapping[str, list[LeftOutClip]], all_in: str) -> list[str]:
    """Return clips that nobody chose to leave out where they are few, with their reasons, and the line that tells of all."""
    chosen = {reason.label for reason in Reason if reason.is_planned or reason.is_chosen}  # as the recipe says
    counts = {reason: group.clips for reason, group in left_out.items() if reason not in chosen}
    few = (
        [(reason, clip) for reason in counts for clip in reasons[reason]] if sum(counts.values()) <= _MOST_TOLD else []
    )
    told = [f"  left out: {clip.path}: {reason}" + (f": {clip.detail}" if clip.detail else "") for reason, clip in few]
    return [*told, all_in] if counts else []


def _explain(data: RecipeData, rows: CatalogRows, reason: Reason, row: int, row_of_data: int, nearest: int) -> str:
    """Return details of the reason of a row of `rows`, which is `row_of_data` among all rows."""
    detail = ""
    if reason == Reason.UNREADABLE:
        detail = str(rows.error[row].as_py())
    elif reason == Reason.IN_EXCLUDE_FILE:
        detail = f"listed in {data.recipe.exclude_file}"
    elif reason == Reason.NO_CAPTION and not rows.no_caption[row]:
        detail = "the caption is empty"
    elif reason == Reason.NO_CAPTION:
        detail = "no caption, or none that the scan can use, in its list or a file beside it"
    elif reason == Reason.NO_COMPANION:
        detail = "; ".join(
            f.explain(data.rows, row_of_data) for f in data.companions.values() if f.problem[row_of_data]
        )
    elif reason.is_duplicate:
        label = data.rows.labels(np.array([nearest]))[0]
        detail = f"{label} stands for it" + (" in this epoch" if reason == Reason.DUPLICATE_TURN else "")
    elif reason in (Reason.TOO_SHORT, Reason.TOO_SMALL, Reason.NO_BUCKET):
        detail = f"{_frames_text(data, row_of_data)} of {rows.width[row]} × {rows.height[row]}"
        if nearest >= 0 and reason == Reason.TOO_SHORT:
            detail += f"; needs {data.table.entries[nearest].needed_frames}"
        if nearest >= 0:
            detail += f"; nearest entry: {data.table.entries[nearest]}"
    return detail


def _frames_text(data: RecipeData, row: int) -> str:
    """Return a clip's number of frames, and after thinning too where some are not read: "40 frames, 26 at 16 fps,"."""
    rows, config = data.rows, data.spec.data
    frames, rate, variable = int(rows.num_frames[row]), float(rows.fps[row]), bool(rows.variable_fps[row])
    text = units.plural(frames, "frame")
    if not rows.is_video[row] or float(decode.frame_step(rate, config, variable)) == 1:
        return text
    read = int(decode.frames_available(np.array(frames), max(rate, 1e-6), config, variable))
    how = f"at {config.frame_rate:g} fps" if config.frame_rate else f"with frame_interval {config.frame_interval}"
    return f"{text}, {read} {how},"


def write(path: Path, data: RecipeData, epoch: int, *, field: str = "--rejected") -> None:
    """Write a table of all clips that an epoch leaves out, by reason: path, size, nearest entry, error."""
    clips, row, assignment = data.assigned(epoch)
    out = assignment.reason != Reason.NONE
    ordinal = data.rows.ordinal[row]
    others = data.unplanned(clips, row, assignment, np.flatnonzero(out))
    notes = segment_record.notes(data, others)
    entries = [str(entry) for entry in data.table.entries]
    _write(field, path, _table(others, notes, ordinal[~out], data.catalog, LABELS, entries))


@dataclass(frozen=True)
class RecordedRejections:
    """A table of the clips that a segment of a run left out: its file, and the segment's name."""

    rejected: Path
    segment: str


def write_recorded(path: Path, run: RunFolder) -> str:
    """Write a table like `write`'s for the latest segment of a run, from its record; return the segment's name."""
    run.info()
    keys = records.keys(run)
    try:
        if not keys:
            raise RecordError("training has not begun")
        record = records.read(run, keys[-1])
        catalog = segment_record.recorded_catalog(run, record.about)
    except RecordError as missing:
        raise UserError(
            f"the run has no record of the clips that it left out: {missing}",
            code="record-missing",
            field="RUN",
            value=str(run.path),
            remedy="pass the recipe instead of the run, to list the clips that its next start would leave out",
        ) from None
    consumed = record.consumed
    reason = record.other_reason.astype(np.int8)
    others = Unplanned(record.other_ordinal, record.other_copy, reason, record.other_nearest)
    left = np.flatnonzero(~consumed)
    trained = np.concatenate([record.ordinal, record.other_ordinal[consumed]])
    notes = record.other_note.combine_chunks().take(pa.array(left))
    _write("--rejected", path, _table(others.take(left), notes, trained, catalog, record.labels, record.about.entries))
    return f"epoch {record.about.epoch}, segment {record.about.segment}"


def _write(field: str, path: Path, table: Any) -> None:
    writer = _WRITERS.get(path.suffix)
    if writer is None:
        raise UserError(
            f"the file is none of {', '.join(_WRITERS)}",
            code="unknown-table-format",
            field="--rejected",
            value=str(path),
            remedy=f"use a file name that ends in {' or '.join(_WRITERS)}",
        )
    buffer = pa.BufferOutputStream()
    writer(table, buffer)
    files.write_for(field, path, buffer.getvalue())


def _table(
    others: Unplanned, notes: Any, trained: NDArray[np.int64], catalog: Catalog, labels: list[str], entries: list[str]
) -> Any:
    """Return a table with a row for each clip of which no repeat is trained, by reason and ordinal."""
    first = np.flatnonzero(np.diff(others.ordinal, prepend=-1) != 0)
    first = first[~np.isin(others.ordinal[first], trained)]
    first = first[np.argsort(others.reason[first], kind="stable")]
    out, notes = others.take(first), notes.take(pa.array(first)).cast(pa.string())
    rows = catalog.columns(*_NAMED).take(pa.array(out.ordinal))
    label = np.array(labels)[out.reason]
    filtered = label == Reason.FILTERED.label
    duplicate = np.isin(label, [reason.label for reason in Reason if reason.is_duplicate])
    failed = pc.if_else(pa.array(filtered), notes, None)
    stand = labels_of(catalog.columns(*LABEL_COLUMNS).take(pa.array(out.nearest[duplicate])))
    # Plain texts in place of dictionaries can be sorted, and written as CSV.
    return pa.table(
        {
            "dataset": rows.column("dataset").cast(pa.string()),
            "path": rows.column("path"),
            "reason": pa.array(labels, type=pa.string()).take(pa.array(out.reason)),
            "first_frame": rows.column("first_frame"),
            "num_frames": rows.column("num_frames"),
            "height": rows.column("height"),
            "width": rows.column("width"),
            "nearest_entry": pa.array(entries, type=pa.string()).take(
                pa.array(out.nearest, mask=(out.nearest < 0) | duplicate)
            ),
            "failed_filter": failed,
            "stands_for_it": pc.replace_with_mask(
                pa.nulls(len(rows), pa.large_string()), pa.array(duplicate), pa.array(stand, type=pa.large_string())
            ),
            "limits_that_take": _limits_that_take(catalog, out.ordinal, failed),
            "error": pc.coalesce(
                rows.column("error"), pc.if_else(pa.array(filtered), None, notes).cast(pa.large_string())
            ),
        }
    )


def _limits_that_take(catalog: Catalog, ordinal: NDArray[np.int64], failed: Any) -> Any:
    """Return the nearest limits that would take each row, of which `failed` has the failed parts of a filter."""
    parts = failed.dictionary_encode()
    code = as_numpy(parts.indices.fill_null(-1))
    order = np.argsort(code, kind="stable")
    begin = np.searchsorted(code[order], np.arange(len(parts.dictionary) + 1))
    texts = [pa.nulls(int(begin[0]), pa.large_string())]
    for part, of_part in zip(parts.dictionary.to_pylist(), np.split(order, begin)[1:-1], strict=True):
        texts.append(filter_failures.limits_that_take(catalog.rows_at(ordinal[of_part]), part))
    return pa.concat_arrays(texts).take(pa.array(np.argsort(order, kind="stable")))
