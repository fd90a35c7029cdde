"""Clips that an epoch leaves out: how many for each reason, the first by name, all of them as a file.

Counts are over files: copies of a clip count once, and not at all where one of them is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, parquet

from reelworks.buckets.assign import Assignment, Reason
from reelworks.catalog import filters
from reelworks.catalog.store import Catalog
from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.data import segment_record
from reelworks.data.plan_cache import Unplanned
from reelworks.data.segment_record import LABELS
from reelworks.recipe.dataset import RecipeData
from reelworks.run import records
from reelworks.run.folder import RunFolder
from reelworks.run.records import RecordError

Json = dict[str, Any]
_NAMED = ("dataset", "path", "num_frames", "height", "width", "error")
FILES_NAMED = 1000  # of each reason; more would make a summary that nobody opens
_WRITERS: dict[str, Callable[[Any, Any], None]] = {".parquet": parquet.write_table, ".csv": csv.write_csv}


@dataclass(frozen=True)
class Rejection:
    """Clips left out for one reason.

    Attributes:
        reason: Why.
        row: Their rows, ascending.
        nearest: For each the entry that would ask least of it, -1 where there is none.
    """

    reason: Reason
    row: NDArray[np.int64]
    nearest: NDArray[np.int32]


def left_out(assignment: Assignment, row: NDArray[np.int64]) -> list[Rejection]:
    """Group what an epoch leaves out by reason; a clip of which any copy is trained is not left out.

    Args:
        assignment: Of every clip and copy.
        row: Row behind each, copies of a clip side by side.

    Returns:
        One for each reason that some clip has.
    """
    trained = np.zeros(int(row.max(initial=-1)) + 1, dtype=np.bool_)
    trained[row[assignment.reason == Reason.NONE]] = True
    found = []
    for reason in list(Reason)[1:]:  # all but NONE
        where = np.flatnonzero((assignment.reason == reason) & ~trained[row])
        where = where[np.diff(row[where], prepend=-1) != 0]
        if len(where):
            found.append(Rejection(reason, row[where], assignment.nearest[where]))
    return found


def counts(data: RecipeData, found: list[Rejection]) -> Json:
    """Clips by reason, and of those that fit nowhere by the entry that would ask least of them."""
    told: Json = {}
    for one in found:
        entry, number = np.unique(one.nearest[one.nearest >= 0], return_counts=True)
        names = [str(data.table.entries[i]) for i in entry.tolist()]
        told[one.reason.label] = {
            "clips": len(one.row),
            "nearest": dict(zip(names, number.tolist(), strict=True)),
        }
    return told


def named(data: RecipeData, found: list[Rejection]) -> dict[str, list[dict[str, str]]]:
    """The first files of each reason by dataset and path, `FILES_NAMED` at most, with particulars."""
    return {
        one.reason.label: [
            _explain(data, one.reason, int(one.row[i]), int(one.nearest[i])) for i in _first(data, one.row)
        ]
        for one in found
    }


def _first(data: RecipeData, row: NDArray[np.int64]) -> list[int]:
    """Places of the first rows by dataset and path."""
    taken = pa.array(row)
    names = pa.table({"dataset": _words(data.rows.dataset.take(taken)), "path": data.rows.path.take(taken)})
    order = [("dataset", "ascending"), ("path", "ascending")]
    first: list[int] = pc.select_k_unstable(names, FILES_NAMED, order).to_pylist()
    return first


def _explain(data: RecipeData, reason: Reason, row: int, nearest: int) -> dict[str, str]:
    rows = data.rows
    detail = ""
    if reason == Reason.UNREADABLE:
        detail = str(rows.error[row].as_py())
    elif reason == Reason.IN_EXCLUDE_FILE:
        detail = f"named in {data.recipe.exclude_file}"
    elif reason == Reason.FILTERED:
        dataset = rows.dataset[row].as_py()
        text = next(d.filter for d in data.recipe.dataset if d.filter and d.dataset_name == dataset)
        found = filters.values(rows, row, text)
        detail = f"{text}; it has " + ", ".join(_told(name, value) for name, value in found.items())
    elif reason == Reason.NO_CAPTION:
        detail = _no_caption(data, row)
    elif reason == Reason.NO_COMPANION:
        detail = "; ".join(f.explain(rows, row) for f in data.companions.values() if f.problem[row])
    elif reason in (Reason.TOO_SHORT, Reason.TOO_SMALL, Reason.NO_BUCKET):
        detail = f"{rows.num_frames[row]} frames of {rows.height[row]} × {rows.width[row]}"
        if nearest >= 0:
            detail += f"; nearest entry: {data.table.entries[nearest]}"
    return {"path": f"{rows.dataset[row].as_py()}/{rows.path[row].as_py()}", "detail": detail}


def _no_caption(data: RecipeData, row: int) -> str:
    if data.rows.caption[row].as_py() is not None:
        return "the caption is empty"
    listed = {d.dataset_name for d in data.recipe.dataset if d.place.list_file is not None}
    name = data.rows.dataset[row].as_py()
    return (
        "no caption in the list, or beside the clip if the list has none"
        if name in listed
        else "no caption file"
    )


def _told(name: str, value: Any) -> str:
    if value is None:
        return f"no {name}"
    return f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value!r}"


def write(path: Path, data: RecipeData, epoch: int) -> None:
    """Write all that an epoch leaves out, a row each, by reason: names, measures, nearest entry, error.

    Args:
        path: Ends in .parquet or .csv.
        data: The recipe's data.
        epoch: From 0.

    Raises:
        UserError: The name ends otherwise, or the file cannot be written.
    """
    clips, row, assignment = data.assigned(epoch)
    out = assignment.reason != Reason.NONE
    ordinal = data.rows.ordinal[row]
    others = Unplanned(ordinal[out], clips.copy[out], assignment.reason[out], assignment.nearest[out])
    notes = segment_record.notes(data, others)
    entries = [str(entry) for entry in data.table.entries]
    _write(path, _table(others, notes, ordinal[~out], data.catalog, LABELS, entries))


def write_recorded(path: Path, run: RunFolder) -> str:
    """Write all that the latest segment of a run left out, as `write` does, by its record alone.

    Returns:
        The segment's name.

    Raises:
        UserError: The run has no record, it is lost, or the file cannot be written.
    """
    run.info()
    keys = records.keys(run)
    try:
        if not keys:
            raise RecordError("no segment has begun")
        record = records.read(run, keys[-1])
        catalog = segment_record.recorded_catalog(run, record.about)
    except RecordError as missing:
        raise UserError(
            f"the run has no record of what it left out: {missing}",
            code="record-missing",
            field="RUN",
            value=str(run.path),
            remedy="give the recipe instead of the run, to see what its next start would leave out",
        ) from None
    consumed = record.consumed
    reason = record.other_reason.astype(np.int8)
    others = Unplanned(record.other_ordinal, record.other_copy, reason, record.other_nearest)
    left = np.flatnonzero(~consumed)
    trained = np.concatenate([record.ordinal, record.other_ordinal[consumed]])
    notes = record.other_note.take(pa.array(left))
    table = _table(others.take(left), notes, trained, catalog, record.labels, record.about.entries)
    _write(path, table)
    return f"epoch {record.about.epoch}, segment {record.about.segment}"


def _write(path: Path, table: Any) -> None:
    writer = _WRITERS.get(path.suffix)
    if writer is None:
        raise UserError(
            "neither .parquet nor .csv",
            code="unknown-table-format",
            field="--rejected",
            value=str(path),
            remedy="end the name in one of them",
        )
    buffer = pa.BufferOutputStream()
    writer(table, buffer)
    files.write_for("--rejected", path, buffer.getvalue())


def _table(
    others: Unplanned,
    notes: Any,
    trained: NDArray[np.int64],
    catalog: Catalog,
    labels: list[str],
    entries: list[str],
) -> Any:
    """A row for each clip of which no copy is trained, by reason and ordinal."""
    first = np.flatnonzero(np.diff(others.ordinal, prepend=-1) != 0)
    first = first[~np.isin(others.ordinal[first], trained)]
    first = first[np.argsort(others.reason[first], kind="stable")]
    out = others.take(first)
    rows = catalog.columns(*_NAMED).take(pa.array(out.ordinal))
    return pa.table(
        {
            "dataset": _words(rows.column("dataset")),
            "path": rows.column("path"),
            "reason": pa.array(labels, type=pa.string()).take(pa.array(out.reason)),
            "num_frames": rows.column("num_frames"),
            "height": rows.column("height"),
            "width": rows.column("width"),
            "nearest_entry": pa.array(entries, type=pa.string()).take(
                pa.array(out.nearest, mask=out.nearest < 0)
            ),
            "error": pc.coalesce(rows.column("error"), notes.take(pa.array(first)).cast(pa.large_string())),
        }
    )


def _words(column: Any) -> Any:
    """A dictionary-encoded column as plain texts, which sort and stand in CSV."""
    return column.cast(pa.string())
