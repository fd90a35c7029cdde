"""Find the columns of paths and captions of a list, whatever its author called them, and the words that stand for no caption."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.core import text_encoding
from reelworks.data.catalog.store.schema import as_numpy

TEXT = pa.large_string()
PATH = "path"
# Names that lists of people and of other trainers give to the columns of paths and of captions; the first that is there counts.
PATH_NAMES = (
    *(PATH, "file_name", "video_path", "image_path", "video", "image", "media_path", "file_path", "filename", "filepath"),
    *("file", "media", "clip_path", "video_file", "image_file"),
)  # fmt: skip
CAPTION_NAMES = ("text", "caption", "prompt", "captions", "text_prompt", "caption_text", "cap")
RANGES = (("start_frame", "end_frame"), ("start_seconds", "end_seconds"))
_KNOWN = frozenset((*PATH_NAMES, *CAPTION_NAMES, *RANGES[0], *RANGES[1]))
# Words that programs write for nothing, in lower case: those of pandas, R, SQL, JavaScript and Python.
NOTHING = frozenset(
    ("nan", "-nan", "none", "null", "<null>", "nil", "n/a", "#n/a", "na", "#na", "<na>", "nat", "undefined", "\\n", "[]", "{}",
     "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan")
)  # fmt: skip
_LONGER = 1 + max(map(len, NOTHING))
_NONE = pa.scalar(None, TEXT)
# Finds the few texts that have to be looked at: those with stray signs, and those of which nothing is seen.
_ODD = rf"{text_encoding.STRAY}|^[\pM\pZ\p{{Cc}}\p{{Cf}}{text_encoding.BLANKS}]+$"


class FilesInsideError(ValueError):
    """A list has the files themselves in place of their paths, so that files of the same names elsewhere may be others."""


class ListColumns(NamedTuple):
    """A list whose paths are texts in `path`, and captions texts of lines, null where there is none.

    Attributes:
        table: All columns of the list.
        caption: Name of the column of captions; None if there is none.
        notes: What a person should know of how they were read.
        is_plain: Whether they stand there as this program writes lists: UTF-8, and if CSV, commas and doubled quotes.
    """

    table: Any
    caption: str | None
    notes: tuple[str, ...] = ()
    is_plain: bool = True


def renamed(names: Sequence[str]) -> list[str]:
    """Return names of columns without spaces around them; those that are known as this program writes them, in small letters.

    The column of the paths is `path`.
    """
    usual = [_usual(name) for name in names]
    path = next((name for name in PATH_NAMES if name in usual), PATH)
    return [PATH if name == path else name for name in usual]


def _usual(name: str) -> str:
    stripped = name.strip().lstrip("\ufeff")
    usual = re.sub(r"[\s-]+", "_", stripped.lower())
    return usual if usual in _KNOWN else stripped


def is_text(name: str) -> bool:
    """Return whether a column holds paths or captions, of which "007" is no number."""
    return _usual(name) in (*PATH_NAMES, *CAPTION_NAMES)


def read(table: Any) -> ListColumns:
    """Return the paths and captions of a list as texts.

    Several columns of one kind are one if they nowhere contradict each other; else the first is taken, with a note.
    """
    names = renamed(table.column_names)
    with_files = set[str]()
    for name, usual, column in zip(table.column_names, names, table.columns, strict=True):
        if _has_files(column):
            with_files.add(usual)
            if usual == PATH or PATH not in names:
                raise FilesInsideError(f"the list has the files themselves, in its column {name}")
    table = table.rename_columns(names)
    words, notes = Counter[str](), list[str]()
    of_paths = [name for name in PATH_NAMES if name not in with_files]  # beside paths, that of a thumbnail is none
    table, _ = _first_of(table, of_paths, lambda _, column: _paths(column), "paths", notes)
    table, caption = _first_of(table, CAPTION_NAMES, lambda n, column: _captions(n, column, words), "captions", notes)
    if words:
        named = ", ".join(f"{word} ({count})" for word, count in words.most_common())
        notes.append(f"what stands for nothing is no caption: {named}")
    return ListColumns(table, caption, tuple(notes))


def _first_of(
    table: Any, names: Sequence[str], texts_of: Callable[[str, Any], Any], kind: str, notes: list[str]
) -> tuple[Any, str | None]:
    """Make texts of the first column of these names, with those of further ones where it has nothing."""
    there = [name for name in names if name in table.column_names]
    if any(table.column_names.count(name) > 1 for name in there):  # which is refused by name
        return table, next(name for name in there if table.column_names.count(name) > 1)
    if not there:
        return table, None
    first, unused = texts_of(there[0], table.column(there[0])), list[str]()
    for name in there[1:]:
        texts = texts_of(name, table.column(name))
        if pc.any(pc.not_equal(first, texts)).as_py():
            unused.append(name)
        else:
            first = pc.coalesce(first, texts)
    if unused:
        notes.append(f"{kind} are those of the column {there[0]}, and not of {', '.join(unused)}")
    return table.set_column(table.column_names.index(there[0]), there[0], first), there[0]


def _has_files(column: Any) -> bool:
    """Return whether a column has files themselves: bytes beside paths, as Hugging Face writes them, or such as no path has."""
    if pa.types.is_struct(column.type):
        has_bytes = column.type.get_field_index("bytes") >= 0
        return has_bytes and bool(pc.struct_field(column, "bytes").null_count < len(column))
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return is_bytes and bool(pc.any(pc.match_substring(column, "\0")).as_py())


def _paths(column: Any) -> Any:
    """Return paths, null for empty ones; of a column of videos or pictures as Hugging Face has them, those in it."""
    if pa.types.is_struct(column.type) and "path" in {field.name for field in column.type}:
        column = pc.struct_field(column, "path")
    if pa.types.is_nested(column.type):
        return pa.nulls(len(column), TEXT)
    texts = _texts(column)
    return pc.if_else(pc.equal(texts, ""), _NONE, texts)


def _captions(name: str, column: Any, words: Counter[str]) -> Any:
    """Return captions without surrounding white space, null for none, a line for each of a list."""
    is_list = any(of(column.type) for of in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))
    lists = column.combine_chunks() if is_list else None
    single = column if lists is None else pa.chunked_array([lists.flatten()])
    if pa.types.is_nested(single.type):
        raise ValueError(f"the column {name} has objects in place of texts: give each clip a text, or a list of texts")
    if lists is None:
        return _without_nothing(_texts(single), words)
    lines = pc.replace_substring_regex(_texts(single), pattern=r"\s*[\r\n]\s*", replacement=" ")
    kept = as_numpy(_without_nothing(lines, words).is_valid())
    ends = np.cumsum(as_numpy(pc.fill_null(pc.list_value_length(lists), 0)))
    offsets = np.concatenate([[0], np.cumsum(kept)])[np.concatenate([[0], ends])].astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, lines.filter(pa.array(kept))), pa.scalar("\n", TEXT))
    return _without_nothing(joined, Counter())


def _texts(column: Any) -> Any:
    """Return a column as one array of texts; numbers become their digits."""
    texts = column.cast(TEXT)
    texts.validate(full=True)  # reading a file does not check that texts are UTF-8
    return pa.chunked_array(texts, TEXT).combine_chunks()


def _without_nothing(texts: Any, words: Counter[str]) -> Any:
    """Return texts as `text_encoding.cleaned` does, null for empty ones and for words for nothing, which are counted."""
    odd = pc.fill_null(pc.match_substring_regex(texts, _ODD), False)
    cleaned = [text_encoding.cleaned(text) for text in texts.filter(odd).to_pylist()]
    words.update("signs by which nothing is seen" for text in cleaned if not text)
    trimmed = pc.utf8_trim_whitespace(pc.replace_with_mask(texts, odd, pa.array(cleaned, TEXT)))
    lengths = as_numpy(pc.fill_null(pc.binary_length(trimmed), 0))
    short = np.flatnonzero(lengths < _LONGER)  # to lower all would take as long as to read them
    few = trimmed.take(pa.array(short))
    nothing = as_numpy(pc.is_in(pc.utf8_lower(few), value_set=pa.array(sorted(NOTHING), TEXT)))
    words.update(
        {word["values"]: word["counts"] for word in pc.value_counts(few.filter(pa.array(nothing))).to_pylist()}
    )
    none = lengths == 0
    none[short[nothing]] = True
    return pc.if_else(pa.array(none), _NONE, trimmed) if none.any() else trimmed
