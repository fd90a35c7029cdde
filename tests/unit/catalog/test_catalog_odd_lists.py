"""Lists of any size and form are read at a cost that grows with their rows, or refused with what is wrong in them."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import time
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refused import refused

from reelworks.core.errors import UserError
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import archive, list_tables, lists
from reelworks.data.catalog.scan.archive import ArchiveHeaders, MemberHeader
from reelworks.data.catalog.scan.source_files import Listing, SourceFile
from reelworks.data.catalog.scan.update import Update
from reelworks.data.catalog.store.store import Catalog

_SECONDS = 4.0  # what is linear takes a tenth of it, and what is quadratic ten times as much


def captions(file: Path) -> list[str | None]:
    read = list_tables.read(file)
    texts: list[str | None] = read.table.column(read.caption).to_pylist()
    return texts


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.mark.parametrize("level", ["[", '{"a":', '{"]}":', r'{"\"]\\":'])
def test_values_that_are_nested_too_deeply_are_refused_and_do_not_end_the_process(tmp_path: Path, level: str) -> None:
    ends = ("]" if level == "[" else "}") * 100_000
    file = tmp_path / "deep.jsonl"
    file.write_text(f'{{"path": "a.png", "text": "x", "more": {level * 100_000}1{ends}}}\n', encoding="utf-8")
    with refused("list-unreadable", "dataset.path", says="nested too deeply"):
        list_tables.read(file)


def test_brackets_in_texts_are_no_levels(tmp_path: Path) -> None:
    texts = [":[" * 3000, '\\"[' * 3000, "{" * 3000 + "\\"]
    rows = [{"path": f"{i}.png", "text": text, "more": [[i]]} for i, text in enumerate(texts)]
    (tmp_path / "list.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    assert captions(tmp_path / "list.jsonl") == texts


@pytest.mark.parametrize("text", ["2020-01-01", "2020-01-01 10:00:00", "007", 2.0])
def test_a_text_alone_and_in_a_list_is_as_it_is_written(tmp_path: Path, text: str | float) -> None:
    for value, caption in ((text, f"{text}"), ([text, text], f"{text}\n{text}")):
        (tmp_path / "list.jsonl").write_text(json.dumps({"path": "a.png", "text": value}), encoding="utf-8")
        assert captions(tmp_path / "list.jsonl") == [caption]


@pytest.mark.parametrize("value", ["1.50", "1e5", "1E400", "-0.0", "1.0", "7", "12345678901234567890123", "true"])
def test_a_caption_that_is_a_number_keeps_its_digits(tmp_path: Path, value: str) -> None:
    """Beside others too, and in a list; a column of scores stays one of numbers."""
    rows = (
        f'{{"path": "a.png", "text": {value}, "aes": 5.50}}',
        f'{{"path": "b.png", "text": [{value}, "x"], "aes": 4}}',
    )
    for name, text in (("a.jsonl", rows[0]), ("b.jsonl", "\n".join(rows)), ("c.json", f"[{', '.join(rows)}]")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        table = list_tables.read(tmp_path / name).table
        assert table.column("text").to_pylist() == [value, f"{value}\nx"][: len(table)]
        assert table.column("aes").to_pylist() == [5.5, 4.0][: len(table)]


@pytest.mark.parametrize(
    "form",
    ['path,text\na.png,"{}"\n', 'path, text\na.png, "{}"\n', 'path,text\na.png,"\\"{}"\n', "path;text\na.png;{}\n"],
)
def test_a_caption_may_be_long_however_it_is_quoted(tmp_path: Path, form: str) -> None:
    text = "a cat, " * 40_000 + "a cat"
    (tmp_path / "list.csv").write_text(form.format(text), encoding="utf-8")
    assert captions(tmp_path / "list.csv")[0] in (text, f'"{text}')
    assert csv.field_size_limit() == 131_072, "of other readers in this process, it is Python's"


def test_a_list_with_a_zero_byte_is_not_plain_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_tables, "_BLOCK_BYTES", 8)
    (tmp_path / "list.csv").write_bytes(b"path,text\na.png,a cat\0\n")
    found = list_tables.read(tmp_path / "list.csv")
    assert (found.table["text"].to_pylist(), found.is_plain) == (["a cat"], False)


def _parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"path": ["a.png"]}), out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (bz2.compress(b"path\na.png\n"), "unpack it"),
        (lzma.compress(b"path\na.png\n"), "unpack it"),
        (pa.compress(b"path\na.png\n", codec="zstd", asbytes=True), "unpack it"),
        (gzip.compress(gzip.compress(b"path\na.png\n")), "unpack it"),
        (_parquet(), "it is Parquet"),
    ],
    ids=["bzip2", "xz", "zstd", "gzip twice", "parquet"],
)
def test_a_list_that_is_packed_otherwise_is_told_as_such(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "list.csv").write_bytes(content)
    with refused("list-unreadable", "dataset.path", says=says):
        list_tables.read(tmp_path / "list.csv")


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_a_list_with_a_name_of_its_own_in_each_row_is_refused_at_once(tmp_path: Path, form: str) -> None:
    rows = [{f"{i}.png": "a cat"} for i in range(8000)]
    text = json.dumps(rows) if form == "json" else "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / f"list.{form}").write_text(text, encoding="utf-8")

    def read() -> None:
        with pytest.raises(UserError, match="no column named path") as told:
            lists.read(Source.from_path(tmp_path / f"list.{form}"))
        assert len(str(told.value)) < 1000

    assert seconds(read) < _SECONDS / 2


@pytest.mark.parametrize("rows", [1, 2])
def test_lines_without_a_column_of_paths_are_told_which_they_have(tmp_path: Path, rows: int) -> None:
    """Also a single one, which is JSON as a whole."""
    (tmp_path / "list.jsonl").write_text('{"clip": "a.png", "text": "a cat"}\n' * rows, encoding="utf-8")
    with refused("list-without-paths", says="no column named path; it has clip, text"):
        lists.read(Source.from_path(tmp_path / "list.jsonl"))


def test_json_in_one_line_that_is_no_list_of_clips_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('{"fps": 24, "clips": 3}', encoding="utf-8")
    with refused("list-unreadable", says="no objects with a path and a text.*it has fps, clips"):
        list_tables.read(tmp_path / "list.json")


def test_columns_cost_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    names, values = zip(*((f"s{i}", f"{i}") for i in range(4000)), strict=True)
    (tmp_path / "list.csv").write_text(f"path,{','.join(names)}\na.png,{','.join(values)}\n", encoding="utf-8")
    found = list[Listing]()
    assert seconds(lambda: found.append(lists.read(Source.from_path(tmp_path / "list.csv")))) < _SECONDS
    assert {name: values.tolist() for name, values in found[0].scores.items()} == {f"s{i}": [i] for i in range(4000)}


def test_members_of_an_archive_with_one_beginning_cost_what_they_are() -> None:
    names = [f"clip.{i:06}.{suffix}" for i in range(8000) for suffix in ("png", "9.txt")]
    headers = ArchiveHeaders([MemberHeader(name, 1, 512, "file", "") for name in names])
    found = list[SourceFile]()
    assert seconds(lambda: found.extend(archive.members("shard.tar", 1, headers, Counter()))) < _SECONDS
    assert len(found) == 8000
    assert all(file.captions is not None and file.captions.unclear == "clip.000000.9" for file in found)


def test_files_of_a_folder_are_examined_together_in_whatever_order_a_list_has_them(tmp_path: Path) -> None:
    paths = [f"{folder}/{name}.png" for folder in "abcdefghijkl" for name in range(5)] * 2
    order = np.random.default_rng(3).permutation(len(paths)).tolist()
    clips = [f"{i // 60}:{i // 60 + 1}" for i in range(len(paths))]
    listing = Listing([SourceFile(paths[i], captions=None, cut="list", clip=clips[i]) for i in order])
    update = Update(Catalog.open_or_new(tmp_path / "catalog"))
    found = [listing.entries[task.number] for task in update.tasks(update.compare("films", str(tmp_path), listing))]
    assert sorted(found) == sorted(listing.entries)
    assert len([*groupby(found, lambda entry: entry.path[0])]) == 12
    assert len([*groupby(found, lambda entry: entry.path)]) == 60


def test_parts_of_a_list_may_have_words_in_a_dictionary_or_as_texts(tmp_path: Path) -> None:
    (tmp_path / "list.parquet").mkdir()
    texts = pa.array(["a cat", None, "a cat"])
    for i, column in enumerate((texts, texts.dictionary_encode(), texts.cast(pa.large_string()).dictionary_encode())):
        paths = pa.array([f"{i}{j}.png" for j in range(3)])
        pq.write_table(pa.table({"path": paths, "text": column}), tmp_path / "list.parquet" / f"{i}.parquet")
    assert captions(tmp_path / "list.parquet") == texts.to_pylist() * 3


def test_two_columns_of_a_name_are_refused_in_parquet_too(tmp_path: Path) -> None:
    columns = [pa.array([text]) for text in ("a.png", "a cat", "a dog")]
    pq.write_table(pa.Table.from_arrays(columns, ["path", "text", "text"]), tmp_path / "list.parquet")
    with refused("duplicate-column", "dataset 'list'", says="two columns are named text"):
        lists.read(Source.from_path(tmp_path / "list.parquet"))


@pytest.mark.parametrize("empty", ["", " ", None])
def test_an_empty_text_in_a_column_of_ranges_is_an_empty_cell(tmp_path: Path, empty: str | None) -> None:
    (tmp_path / "a.mp4").write_bytes(b"")
    rows = [{"path": "a.mp4", "text": "x", "start_frame": a, "end_frame": b} for a, b in ((empty, empty), ("3", empty))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "list.parquet")
    found = lists.read(Source.from_path(tmp_path / "list.parquet"))
    assert [entry.clip for entry in found.entries] == ["", "3:"]
