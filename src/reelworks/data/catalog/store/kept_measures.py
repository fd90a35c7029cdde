"""Keep what was measured in clips by their content, so that nothing is measured twice whatever becomes of files and captions.

    measures/000000.parquet    a row for each clip: its key, and a column for each value, such as `motion@1:static`
    measures/columns.json      for each column that the catalog got: the label of its values, and where it is complete

The key of a clip is a hash of the fingerprint of its file and of its range of frames. A column is null for clips that its
measure was not applied to, and NaN where the measure has no value, as motion has none for a picture. Segments are added
while clips are measured; a damaged one is dropped, and its clips are measured again. Copies and moved files get the values of
the same label at the next scan. A column that `columns.json` lacks was not measured, or measured by nobody knows what: the folder may be deleted at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from reelworks.core import blocks, digests, files, hash_rng, user_files
from reelworks.core.arrays import I64, U64, Mask
from reelworks.core.log import logger
from reelworks.data.catalog.store import measured_columns, schema
from reelworks.data.catalog.store.reader import prefetch_one
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import as_numpy

NAME = "measures"
_COLUMNS = "columns.json"
_KEY = "key"
_BATCH = 1 << 16  # rows that are read at once
_BUFFER_BYTES = 1 << 22
_FEW_ROWS, _MOST_SMALL = 1 << 16, 32  # segments of few rows are joined when there are many


def label(measure: str, version: int, column: str) -> str:
    """Return the name under which a value of a measure is kept."""
    return f"{measure}@{version}:{column}"


class WrittenColumn(NamedTuple):
    """A measured column of a catalog.

    Attributes:
        label: Name under which its values are kept, or the features of clips that a measure compares.
        entry: What names the measure on the command line.
        complete_in: Digest of the version of the catalog in which every clip was measured; "" for none.
    """

    label: str
    entry: str
    complete_in: str = ""


def written_columns(catalog: Path) -> dict[str, WrittenColumn]:
    """Return the measured columns of a catalog by name."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found = user_files.read_json(catalog / NAME / _COLUMNS)
        return {name: WrittenColumn(*map(str, fields)) for name, fields in found.items()}
    return {}


def remember_columns(catalog: Path, columns: Mapping[str, WrittenColumn]) -> None:
    """Remember the measured columns of a catalog, unless they are known to be these."""
    if columns != written_columns(catalog):
        files.write_json(catalog / NAME / _COLUMNS, dict(columns))


def keys_of(rows: CatalogRows) -> U64:
    """Return the keys of clips."""
    content = rows.content_keys()
    keys = hash_rng.hash64(content, rows.first_frame, rows.num_frames)
    stated = np.flatnonzero(content == digests.NO_CONTENT)
    if len(stated):  # another file may have the same size and time
        of_file = (rows if len(stated) == len(rows) else rows.take(stated)).text_words("fingerprint")
        keys[stated] = hash_rng.hash64(keys[stated], of_file, rows.uid[stated])
    sampled = np.flatnonzero(rows.size_bytes > digests.FULL_READ_LIMIT_BYTES)
    # Those whose fingerprint has a version.
    sampled = sampled[as_numpy(pc.equal(pc.count_substring(rows.fingerprint.take(pa.array(sampled)), "-"), 2))]
    keys[sampled] = hash_rng.hash64(keys[sampled], rows.mtime_ns[sampled])
    return keys


def keys_of_captions(rows: CatalogRows) -> U64:
    """Return the keys of clips with their captions."""
    return hash_rng.hash64(keys_of(rows), rows.text_words("caption"))


class _KeptSegment(NamedTuple):
    path: Path
    rows: int
    columns: frozenset[str]


class KeptMeasures:
    """The values that are kept beside a catalog."""

    def __init__(self, catalog: Path) -> None:
        """Find the segments; one that cannot be read is dropped."""
        self._folder, self._segments = catalog / NAME, list[_KeptSegment]()
        for path in self._files():
            try:
                metadata = pq.read_metadata(path)
                names = frozenset(metadata.schema.to_arrow_schema().names)
                self._segments.append(_KeptSegment(path, metadata.num_rows, names))
            except (OSError, ValueError, pa.ArrowException) as error:
                _tell_of_damage(path, error)

    def _files(self) -> list[Path]:
        """Return the files of segments in their order; copies that other programs name after them are none."""
        return sorted(path for path in self._folder.glob("*.parquet") if path.stem.isdecimal())

    def values(self, labels: Sequence[str], keys: U64) -> np.ma.MaskedArray[Any, np.dtype[np.float64]]:
        """Return values by key, `[N, labels]`, masked and NaN for a key that has none; of features, the mask alone means something."""
        values, lacks = np.full((len(labels), len(keys)), np.nan), np.ones((len(labels), len(keys)), dtype=np.bool_)
        undamaged = len(self._segments)
        for batch, at, found in self._find(labels, keys):
            for i, name in enumerate(labels):
                if name in batch.schema.names:
                    column = batch.column(name)
                    has = as_numpy(column.is_valid())[at] if column.null_count else slice(None)
                    lacks[i, found[has]] = False
                    if pa.types.is_floating(column.type):
                        values[i, found[has]] = as_numpy(column)[at[has]]
        if len(self._segments) < undamaged:
            return self.values(labels, keys)  # without what was read of a segment before its damage was seen
        return np.ma.MaskedArray(values.T, lacks.T)

    def features(self, name: str, keys: U64, width: int) -> tuple[NDArray[np.uint8], Mask]:
        """Return features of one measure by key, `[M, width]`, and a mask of the M keys that have them."""
        has = np.zeros(len(keys), dtype=np.bool_)
        for _, _, found in self._find([name], keys, read=False):
            has[found] = True
        features = np.zeros((int(has.sum()), width), dtype=np.uint8)
        place, filled = np.cumsum(has) - 1, np.zeros_like(has)
        for batch, at, found in self._find([name], keys):
            column = batch.column(name)
            some = as_numpy(column.is_valid())[at]
            stored = np.frombuffer(column.buffers()[1], dtype=np.uint8)[column.offset * width :]
            features[place[found[some]]] = stored[: len(column) * width].reshape(-1, width)[at[some]]
            filled[found[some]] = True
        pa.default_memory_pool().release_unused()  # of gigabytes that were read, it keeps some for the next
        return (features if filled.sum() == len(features) else features[filled[has]]), filled

    def add(self, keys: Sequence[int], found: Sequence[Mapping[str, float | bytes]]) -> None:
        """Keep values of clips by label; they are on disk afterwards."""
        first = {name: value for values in found for name, value in values.items()}
        kinds = {n: pa.binary(len(v)) if isinstance(v, bytes) else pa.float64() for n, v in sorted(first.items())}
        columns = [pa.array([values.get(name) for values in found], type=kind) for name, kind in kinds.items()]
        if not columns:
            return
        self.add_table(pa.table([pa.array(keys, type=pa.uint64()), *columns], names=[_KEY, *kinds]))
        small = [segment for segment in self._segments if segment.rows < _FEW_ROWS]
        if len(small) > _MOST_SMALL:
            self._join(small)

    def _find(self, labels: Sequence[str], keys: U64, *, read: bool = True) -> Iterator[tuple[Any, I64, I64]]:
        """Yield parts of the segments that have any of the labels, and for each the rows that keys have and the indices of these keys.

        Features of millions of clips are gigabytes, of which a part at a time is in memory; if they are not to be `read`, parts
        have keys alone.
        """
        order = np.argsort(keys)
        ordered = keys[order]
        first = np.flatnonzero(np.diff(ordered, prepend=~ordered[:1]))  # of each key, which several clips may have
        each, times = ordered[first], np.diff(first, append=len(keys))
        for segment in list(self._segments) if len(keys) else ():
            inside = [name for name in labels if name in segment.columns]
            for batch in prefetch_one(self._batches(segment, [_KEY, *(inside if read else ())])) if inside else ():
                known = as_numpy(batch.column(_KEY))
                by_key = np.argsort(known, kind="stable")
                place = np.minimum(np.searchsorted(each, known[by_key]), len(each) - 1)
                count = times[place] * (each[place] == known[by_key])
                at = np.repeat(by_key, count)
                yield batch, at, order[np.repeat(first[place] + count - np.cumsum(count), count) + np.arange(len(at))]

    def _batches(self, segment: _KeptSegment, columns: Sequence[str]) -> Iterator[Any]:
        try:
            # Else a column of a group of a million rows would be in memory as it is on disk, too.
            options = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
            yield from pq.ParquetFile(segment.path, **options).iter_batches(_BATCH, columns=list(columns))
        except (OSError, ValueError, pa.ArrowException) as error:
            _tell_of_damage(segment.path, error)
            self._segments.remove(segment)

    def add_table(self, table: Any) -> None:
        """Keep values of clips, given as a table with their keys and a column for each label."""
        number = 1 + max((int(path.stem) for path in self._files()), default=-1)
        path = self._folder / f"{number:06d}.parquet"
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, buffer.getvalue().to_pybytes())
        self._segments.append(_KeptSegment(path, len(table), frozenset(table.column_names)))

    def _join(self, small: list[_KeptSegment]) -> None:
        """Write the rows of several segments into one; those that were joined remain if this is killed, and do no harm."""
        tables = [
            pa.Table.from_batches([batch])
            for segment in small
            for batch in self._batches(segment, sorted(segment.columns))
        ]
        self.add_table(pa.concat_tables(tables, promote_options="default"))
        for segment in small:
            segment.path.unlink(missing_ok=True)
        self._segments = [segment for segment in self._segments if segment not in small]


def _tell_of_damage(path: Path, error: Exception) -> None:
    logger.warning("%s is damaged (%s): what it holds is measured again", path, str(error).partition("\n")[0])


def carried(
    rows: Any,
    live: CatalogRows,
    retired: I64,
    own: Mapping[str, frozenset[str]],
    catalog: Path,
    labels: Mapping[str, str],
) -> Any:
    """Return rows of a scan with the measured columns of the same content: those of former rows, else those that are kept.

    Args:
        rows: Table of the rows to append, with the scores of lists.
        live: Rows that were valid before the scan.
        retired: Indices of those that it retires. What depends on other clips, such as the group of duplicates, is
            taken from them alone.
        own: Scores that lists gave or give, by dataset; they are never replaced.
        catalog: Folder of the catalog.
        labels: Label under which the values of each column are kept.
    """
    names = [name for name in live.scores if np.isfinite(live.scores[name][~_in(live, own, name)]).any()]
    if not names or not len(rows):
        return rows
    new = CatalogRows.from_table(rows)
    readable = new.readable
    of_content = _sources(new, live, retired)
    of_captions = _with_captions(new, live, of_content[1])
    kept = KeptMeasures(catalog)
    for name in names:
        column_of = measured_columns.find(name)
        keys, source = of_captions if column_of is not None and column_of.of_caption else of_content
        column = np.array(new.score(name))
        free = readable & np.isnan(column) & ~_in(new, own, name)
        former = free & (source >= 0)
        former[former] &= ~_in(live.take(source[former]), own, name)
        column[former] = live.scores[name][source[former]]
        missing = np.flatnonzero(free & np.isnan(column))
        if len(missing) and labels.get(name, "").endswith(f":{name}"):  # else features, which are no values
            column[missing] = kept.values([labels[name]], keys[missing]).data[:, 0]
        rows = schema.with_score(rows, name, column)
    return rows


def _sources(new: CatalogRows, live: CatalogRows, retired: I64) -> tuple[U64, I64]:
    """Return the keys of rows, and the index of the former row of the same content: the clip's own, or a retired one."""
    keys, source = keys_of(new), live.find(new.uid)
    own = np.flatnonzero(source >= 0)
    source[own[keys_of(live.take(source[own])) != keys[own]]] = -1
    if len(retired):
        of_retired = keys_of(live.take(retired))
        order = np.argsort(of_retired, kind="stable")
        at = blocks.find(of_retired[order], keys)
        moved = (source < 0) & (at >= 0)
        source[moved] = retired[order[at[moved]]]
    return keys, source


def _with_captions(new: CatalogRows, live: CatalogRows, source: I64) -> tuple[U64, I64]:
    """Return the keys of rows with their captions, and of `source` what has the same caption."""
    keys, found = keys_of_captions(new), np.flatnonzero(source >= 0)
    source = source.copy()
    source[found[keys_of_captions(live.take(source[found])) != keys[found]]] = -1
    return keys, source


def _in(rows: CatalogRows, own: Mapping[str, frozenset[str]], name: str) -> Mask:
    return rows.of_datasets([dataset for dataset, names in own.items() if name in names])
