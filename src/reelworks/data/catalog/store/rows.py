"""The columns of a catalog as arrays.

Numbers are numpy arrays and texts are Arrow arrays, so that ten million clips need no Python object each. Texts
that repeat (dataset, root, kind, codec and others) are dictionary-encoded. Each score of a list is a column of
its own, which only parts written since the list had it contain. A column is read from disk when it is first used:
most of a catalog's bytes are captions, paths and fingerprints, which few commands need as a whole.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core import blocks, digests
from reelworks.core.arrays import F64, I32, I64, U64, Mask
from reelworks.core.digests import ArrayParts
from reelworks.core.hash_rng import byte_words, hash64, text_words
from reelworks.data.catalog.store import schema
from reelworks.data.catalog.store.column_files import ColumnFiles
from reelworks.data.catalog.store.schema import DERIVED, SCHEMA, SCORE, TEXT, CatalogColumns, as_numpy
from reelworks.data.media import location
from reelworks.data.media.location import MediaPath

_CHUNK = 1 << 17
_READERS = 2  # further ones would take memory, and are not faster
_RANGE_OF_LABEL = re.compile(r"\[\d+:\d+\]$")
LABEL_COLUMNS = ("dataset", "path", "cut", "first_frame", "num_frames")
Wanted = NDArray[np.int64] | None
Chunks = Callable[[str, Wanted], Iterator[Any]]


def labels(table: pa.Table) -> list[str]:
    """Return the labels (`CatalogRows.label`) of rows, given as a table of `LABEL_COLUMNS`."""
    dataset, path = (table.column(name).cast(TEXT) for name in LABEL_COLUMNS[:2])
    result = pc.binary_join_element_wise(dataset, path, pa.scalar("/", TEXT)).to_pylist()
    first, count = (as_numpy(table.column(name)) for name in LABEL_COLUMNS[3:])
    for i in np.flatnonzero(as_numpy(pc.not_equal(table.column("cut").cast(pa.string()), ""))).tolist():
        result[i] += f"[{first[i]}:{first[i] + count[i]}]"
    return list(result)


def without_range(label: str) -> str:
    """Return the "dataset/path" of a label, which names all ranges of the file."""
    return _RANGE_OF_LABEL.sub("", label)


class CatalogRows(CatalogColumns):
    """Rows of a catalog; all arrays have one element for each row.

    Reading a column that is damaged on disk raises a UserError.
    """

    captioned: Mask  # whether there is a caption that is not empty
    no_caption: Mask  # whether `caption` is null
    own_group: Mask  # whether `group` is the path
    readable: Mask  # whether the file can be trained on: `error` is null
    # Scores of lists by name; NaN for rows without that score.
    scores: Mapping[str, F64]

    def __init__(self, count: int, chunks: Chunks, scores: Iterable[str] = (), kept: ColumnFiles | None = None) -> None:
        """Make rows whose columns are read on demand.

        Args:
            count: Number of rows.
            chunks: Yields a column in consecutive parts, as `chunks` does.
            scores: Names of the scores, whose columns have the prefix `SCORE`.
            kept: Files of whole columns, which are mapped in place of being read; None reads each into memory.
        """
        self._count, self._chunks, self._kept = count, chunks, kept
        self.scores = _Scores(self, tuple(scores))

    @classmethod
    def from_table(cls, table: pa.Table) -> CatalogRows:
        """Make rows of a table of `SCHEMA`, with or without scores."""

        def chunks(name: str, _: Wanted = None) -> Iterator[Any]:
            columns = [table.column(n).combine_chunks() for n in DERIVED.get(name, (name,))]
            yield schema.derive(name, *columns) if name in DERIVED else schema.as_column(name, columns[0])

        scores = [name.removeprefix(SCORE) for name in table.column_names if name.startswith(SCORE)]
        return cls(len(table), chunks, scores)

    def __len__(self) -> int:
        return self._count

    def __getattr__(self, name: str) -> Any:
        if name not in schema.FIELDS:
            raise AttributeError(name)
        return self.column(name)

    def column(self, name: str) -> Any:
        """Return a column, which stays in memory from now on; a score by its name with the prefix `SCORE`."""
        if (known := self.__dict__.get(name)) is None:
            known = self.__dict__[name] = self._whole(name)
        return known

    def value(self, name: str, index: int) -> Any:
        """Return a value of a row, None for a missing one, from a column that stays in memory from now on."""
        if name.startswith(SCORE) and name.removeprefix(SCORE) not in self.scores:
            return None
        value = self.column(name)[index]
        if schema.is_text(name):
            return value.as_py()
        return None if np.isnan(value) else value

    def release(self, *names: str) -> None:
        """Unmap columns that are mapped, until they are used again; others stay in memory."""
        for name in names if self._kept is not None else ():
            self.__dict__.pop(name, None)

    def load(self, *names: str) -> None:
        """Read columns into memory, several at a time."""
        with ThreadPoolExecutor(_READERS) as threads:
            for _ in threads.map(self.column, set(names) - self.__dict__.keys()):
                pass

    def chunks(self, name: str, wanted: Wanted = None) -> Iterator[Any]:
        """Yield a column in consecutive parts, none of which stays in memory unless the column already is.

        Numbers are numpy arrays, and texts Arrow arrays. If only some rows are `wanted`, by ascending indices, a part
        without any of them may be its length alone.
        """
        return iter([self.__dict__[name]]) if name in self.__dict__ else self._chunks(name, wanted)

    def _whole(self, name: str) -> Any:
        kind, is_text = schema.field(name).type, schema.is_text(name)
        dtype = None if is_text else pa.array([], kind).to_numpy(zero_copy_only=False).dtype
        mapped = None if self._kept is None else self._kept.get(name, lambda: self._chunks(name, None), dtype)
        if mapped is not None:
            return mapped
        chunks = self._chunks(name, None)
        if is_text:
            texts = [chunk for chunk in chunks if len(chunk)] or [pa.array([], type=kind)]
            # Those of repeated words share one dictionary then.
            return texts[0] if len(texts) == 1 else pa.chunked_array(texts).unify_dictionaries().combine_chunks()
        first = next(chunks, np.zeros(0, dtype))
        if len(first) == self._count:
            return first
        column = np.empty(self._count, dtype=first.dtype)
        filled = 0
        for chunk in itertools.chain([first], chunks):  # not concatenated, which would take the memory twice
            column[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        return column

    def take(self, indices: NDArray[Any]) -> CatalogRows:
        """Return rows selected by indices or by a boolean mask."""
        selected = np.flatnonzero(indices) if indices.dtype == np.bool_ else indices
        in_order = bool((selected[1:] > selected[:-1]).all())

        def chunks(name: str, wanted: Wanted = None) -> Iterator[Any]:
            if not len(selected):
                return
            if not in_order:
                yield _taken(name, self.column(name), selected)
                return
            first = 0
            for chunk in self.chunks(name, selected if wanted is None else selected[wanted]):
                length = chunk if isinstance(chunk, int) else len(chunk)
                begin, end = np.searchsorted(selected, [first, first + length])
                if not isinstance(chunk, int):
                    yield _taken(name, chunk, selected[begin:end] - first)
                elif wanted is not None:
                    yield int(end - begin)
                first += length

        return CatalogRows(len(selected), chunks, self.scores)

    def replaced(self, scores: Mapping[str, F64] | None = None, **columns: Any) -> CatalogRows:
        """Return the rows with other scores, if given, and with other columns by name."""
        columns |= {SCORE + name: score for name, score in (self.scores if scores is None else scores).items()}

        def chunks(name: str, wanted: Wanted = None) -> Iterator[Any]:
            if not columns.keys().isdisjoint(DERIVED.get(name, ())):
                return iter([schema.derive(name, *(columns.get(n, self.column(n)) for n in DERIVED[name]))])
            return iter([columns[name]]) if name in columns else self.chunks(name, wanted)

        return CatalogRows(len(self), chunks, self.scores if scores is None else scores)

    def find(self, uids: U64) -> I64:
        """Return the indices of clips by uid, -1 if absent; every uid must have one row at most."""
        order, ordered = self._by_uid
        return order[blocks.find(ordered, uids)]

    @cached_property
    def _by_uid(self) -> tuple[I64, U64]:
        """The rows in the order of their uids, with -1 behind the last one, and these uids."""
        order = np.argsort(self.uid, kind="stable")
        return np.append(order, -1), self.uid[order]

    @cached_property
    def is_video(self) -> Mask:
        """Mask of the rows of videos."""
        return self.per_word("kind", "video".__eq__)

    @cached_property
    def is_image(self) -> Mask:
        """Mask of the rows of pictures."""
        return self._mask("is_image", lambda: self.per_word("kind", "image".__eq__))

    @cached_property
    def is_sound(self) -> Mask:
        """Mask of the rows of sounds without pictures."""
        return self.per_word("kind", "sound".__eq__)

    @cached_property
    def is_hdr(self) -> Mask:
        """Mask of the rows of videos of high dynamic range."""
        return self.per_word("hdr", bool)

    @cached_property
    def has_sound(self) -> Mask:
        """Mask of the rows with sound."""
        return self.per_word("sound", bool)

    def per_word(self, name: str, test: Callable[[str], bool]) -> Mask:
        """Return where the text of a dictionary-encoded column passes a test, which is called once for each text."""
        column = getattr(self, name)
        passes = np.array([*(test(word) for word in column.dictionary.to_pylist()), False], dtype=np.bool_)
        return np.asarray(passes[as_numpy(column.indices)])

    @cached_property
    def is_range(self) -> Mask:
        """Mask of the rows of clips that are a range of frames of their file."""
        return self._mask("is_range", lambda: self.per_word("cut", bool))

    def _mask(self, name: str, compute: Callable[[], Mask]) -> Mask:
        """Return a mask that each clip of a step is looked up in, mapped if there are files for it."""
        mapped = None if self._kept is None else self._kept.get(name, lambda: [compute()], np.bool_)
        return compute() if mapped is None else mapped

    def score(self, name: str) -> F64:
        """Return a score of each row, NaN for all if there is none of the name."""
        return self.scores[name] if name in self.scores else np.full(len(self), np.nan)

    @cached_property
    def _datasets(self) -> tuple[list[str], I32]:
        """Names of datasets, and the index of each row's."""
        return self.dataset.dictionary.to_pylist(), as_numpy(self.dataset.indices)

    def dataset_name(self, index: int) -> str:
        """Return the name of a row's dataset."""
        names, of_rows = self._datasets  # a value of the column itself takes several times as long
        return names[int(of_rows[index])]

    def of_datasets(self, names: Collection[str]) -> Mask:
        """Return a mask of the rows of these datasets."""
        return self.per_dataset(dict.fromkeys(names, True), default=False)

    def per_dataset(self, values: Mapping[str, Any], default: Any, dtype: Any = None) -> NDArray[Any]:
        """Return a value for each row, by the name of its dataset; the values give the type if it is None."""
        words = self.dataset.dictionary.to_pylist()
        by_code = np.array([default, *(values.get(name, default) for name in words)], dtype)
        if len(by_code) == 2:  # one dataset, the same value for millions of rows
            return np.full(len(self), by_code[1])
        return np.asarray(by_code[1:][as_numpy(self.dataset.indices)])

    def group_keys(self, by: Literal["file", "folder"]) -> U64:
        """Return a key for the group of each row; a file that is its own group has its uid as key."""
        if by == "folder":  # clips directly in a dataset's folder share one
            folder = pc.replace_substring_regex(self.path, pattern=r"/?[^/]*$", replacement="").dictionary_encode()
            return hash64(_hashes(self.dataset), _hashes(folder))
        groups = self.uid.copy()
        shared = np.flatnonzero(self.is_range | ~self.own_group)
        if len(shared):
            groups[shared] = _hashes(self.take(shared).group.dictionary_encode())
        return groups

    def content_keys(self) -> U64:
        """Return a key for the content of each row's file, see `digests.content_keys`."""
        return self._per_text("fingerprint", digests.content_keys)

    def text_words(self, name: str) -> U64:
        """Return an integer for each text of a column, as `hash_rng.text_words` does; a missing text counts as an empty one."""
        return self._per_text(name, lambda texts: byte_words(texts.fill_null("").cast(pa.large_binary()).to_pylist()))

    def _per_text(self, name: str, compute: Callable[[Any], U64]) -> U64:
        found, first = np.empty(len(self), dtype=np.uint64), 0
        for chunk in self._text_chunks(name):
            found[first : first + len(chunk)] = compute(chunk)
            first += len(chunk)
        return found

    def file(self, index: int) -> MediaPath:
        """Return the place of a row's file."""
        root, path, scanned = (texts[index].as_py() for texts in (self.root, self.path, self.fingerprint))
        start, size, version = (int(column[index]) for column in (self.start, self.size_bytes, self.mtime_ns))
        return location.below(root, path, start, size, version, digests.of_content(scanned))

    def label(self, index: int) -> str:
        """Return a row's "dataset/path", with the frames of a range: "films/a.mp4[120:240]" has frames 120 to 239."""
        first = int(self.first_frame[index])
        frames = f"[{first}:{first + int(self.num_frames[index])}]" if self.is_range[index] else ""
        return f"{self.dataset_name(index)}/{self.path[index].as_py()}{frames}"

    def labels(self, indices: NDArray[np.integer[Any]]) -> list[str]:
        """Return the labels of some rows, without reading the paths of all others."""
        at, place = np.unique(indices, return_inverse=True)
        few = self.take(at)
        return [few.label(int(i)) for i in place]

    def to_table(self) -> pa.Table:
        """Return the rows as a table that shares their memory; missing scores are null."""
        columns = [pa.array(self.column(f.name), type=f.type) for f in SCHEMA]
        columns += [pa.array(score, from_pandas=True) for score in self.scores.values()]
        return pa.table(columns, schema=schema.with_scores(self.scores))

    def digest(self) -> str:
        """Return a digest of all that training depends on: ordinals, uids, contents, captions and scores."""
        arrays = {"ordinal": ArrayParts.from_array(self.ordinal), "uid": ArrayParts.from_array(self.uid)}
        for name in ("fingerprint", "caption"):
            lengths, missing = self._lengths(name)
            text_bytes = ArrayParts(np.dtype(np.uint8), (int(lengths.sum()),), partial(self._bytes, name))
            of_text = {
                "lengths": ArrayParts.from_array(lengths, np.int64),
                "bytes": text_bytes,
                "missing": ArrayParts.from_array(missing),
            }
            arrays |= {f"{name}_{part}": array for part, array in of_text.items()}
        told = {SCORE + name: score for name, score in self.scores.items() if not np.isnan(score).all()}
        return digests.digest_parts(arrays | {name: ArrayParts.from_array(score) for name, score in told.items()})

    def _text_chunks(self, name: str) -> Iterator[Any]:
        if self._kept is not None:
            self.column(name)  # which is read twice, and by steps later
        for chunk in self.chunks(name):
            for first in range(0, len(chunk), _CHUNK):
                yield chunk.slice(first, _CHUNK)

    def _lengths(self, name: str) -> tuple[I32, Mask]:
        """Return the bytes of each text, 0 for a missing one, and whether it is missing."""
        lengths, missing = np.zeros(len(self), dtype=np.int32), np.zeros(len(self), dtype=np.bool_)
        first = 0
        for chunk in self._text_chunks(name):
            where = slice(first, first + len(chunk))
            lengths[where] = as_numpy(pc.binary_length(chunk).fill_null(0))
            missing[where] = as_numpy(chunk.is_null())
            first += len(chunk)
        return lengths, missing

    def _bytes(self, name: str) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of all texts, which are equal for equal texts in any memory layout."""
        for chunk in self._text_chunks(name):
            filled = chunk.fill_null("")
            _, offset_buffer, data_buffer = filled.buffers()
            if len(filled) and data_buffer is not None:
                offsets = np.frombuffer(offset_buffer, dtype=np.int64)[filled.offset :]
                yield np.frombuffer(data_buffer, dtype=np.uint8)[offsets[0] : offsets[len(filled)]]


class _Scores(Mapping[str, F64]):
    """Scores of rows by name, each read when it is first used."""

    def __init__(self, rows: CatalogRows, names: tuple[str, ...]) -> None:
        self._rows, self._names = rows, names

    def __getitem__(self, name: str) -> F64:
        if name not in self._names:
            raise KeyError(name)
        return np.asarray(self._rows.column(SCORE + name))

    def __contains__(self, name: object) -> bool:
        return name in self._names  # without reading the column

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _taken(name: str, column: Any, selected: I64) -> Any:
    return column.take(pa.array(selected, type=pa.int64())) if schema.is_text(name) else column[selected]


def _hashes(words: Any) -> U64:
    """Hash a dictionary-encoded column, each distinct word once, as `hash_int` does."""
    return np.asarray(hash64(text_words(words.dictionary.to_pylist()))[np.asarray(words.indices)])
