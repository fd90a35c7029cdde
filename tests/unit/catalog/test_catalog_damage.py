"""A catalog that cannot be trusted is refused in words: which file, which row, which value, what to do."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import catalog_rows
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reelworks.commands import main
from reelworks.core.errors import UserError
from reelworks.data.catalog.store.schema import SCHEMA
from reelworks.data.catalog.store.store import Catalog

SHOT = {"num_frames": 48, "height": 480, "width": 640, "duration_seconds": 2.0, "caption": "a shot"}
ROW = catalog_rows.row(0, SHOT | {"dataset": "d"})


def part(first: int) -> pa.Table:
    rows = [{"uid": 100 + i, "path": f"{i}.mp4", "group": f"{i}.mp4"} for i in range(first, first + 3)]
    return pa.Table.from_pylist([ROW | row for row in rows], schema=SCHEMA)


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """Nine clips in three parts; the second retires clip 1, the third clip 4."""
    folder = tmp_path / "catalog"
    folder.mkdir()
    made = Catalog.open_or_new(folder)
    for first, retired in ((0, []), (3, [1]), (6, [4])):
        made = made.append(part(first), np.array(retired, dtype=np.int64), [])
    return folder


def file(catalog: Path, number: int = 1) -> Path:
    return catalog / f"part-{number:06d}.parquet"


def edit(catalog: Path, name: str, column: Any) -> None:
    """Replace a column of the second part."""
    table = pq.read_table(file(catalog))
    place = table.schema.get_field_index(name)
    pq.write_table(table.set_column(place, pa.field(name, column.type), column), file(catalog))


def refusal(catalog: Path) -> str:
    """What a user is told; without a remedy and the folder it is no answer."""
    with pytest.raises(UserError) as told:
        Catalog.open(catalog).live()
    assert "remedy: restore the folder from a backup" in str(told.value)
    assert str(catalog) in str(told.value)
    return str(told.value)


def test_the_whole_one_is_read(catalog: Path) -> None:
    assert Catalog.open(catalog).live().ordinal.tolist() == [0, 2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fps", math.nan),
        ("fps", math.inf),
        ("fps", -24.0),
        ("duration_seconds", math.nan),
        ("duration_seconds", -math.inf),
        ("num_frames", 0),
        ("num_frames", -48),
        ("height", 0),
        ("height", -480),
        ("width", 0),
        ("width", -1),
        ("size_bytes", -1),
        ("ordinal", 3),
        ("ordinal", 7),
        ("path", ""),
        ("path", "/etc/passwd"),
        ("path", ".."),
        ("path", "a/../../b.mp4"),
        ("path", "a\0b.mp4"),
        ("root", "data"),
        ("kind", "music"),
    ],
)
def test_an_impossible_value_is_named_with_its_row(catalog: Path, name: str, value: Any) -> None:
    values = [*pq.read_table(file(catalog)).column(name).to_pylist()[:2], value]
    edit(catalog, name, pa.array(values, type=SCHEMA.field(name).type))
    path = value if name == "path" else "5.mp4"
    assert f"row 5 ({path!r}) has {name} = {value}\n" in refusal(catalog)


@pytest.mark.parametrize("name", ["a..b.mp4", "..a/b.mp4", "a../b.mp4", "grün/…mp4", "a b\n.mp4"])
def test_names_that_only_look_odd_are_good(catalog: Path, name: str) -> None:
    edit(catalog, "path", pa.array(["3.mp4", "4.mp4", name], type=pa.large_string()))
    assert Catalog.open(catalog).live().path[3].as_py() == name


def test_a_file_that_could_not_be_read_has_no_measures(catalog: Path) -> None:
    for name in ("num_frames", "height", "width"):
        edit(catalog, name, pa.array([48, 48, 0]))
    assert "row 5" in refusal(catalog)
    edit(catalog, "error", pa.array([None, None, "truncated"]))
    edit(catalog, "readable", pa.array([True, True, False]))
    assert Catalog.open(catalog).live().readable.tolist() == [True, True, True, False, True, True, True]


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("height", pa.array([480, None, 480]), "no height in row 4"),
        ("path", pa.array(["3.mp4", "4.mp4", None]), "no path in row 5"),
        ("height", pa.array([480.0, math.nan, 480.0]), "height as double instead of int64"),
        ("height", pa.array(["480", "480", "480"]), "height as string instead of int64"),
        ("fps", pa.array([24, 24, 24]), "fps as int64 instead of double"),
        ("path", pa.array([3, 4, 5]), "path as int64 instead of large_string"),
        ("caption", pa.array([["a"], ["b"], ["c"]]), "caption as list"),
        ("uid", pa.array([103, 104, -5]), "wrong uid in row 5: Integer value -5"),
        ("height", pa.array([480, 1 << 63, 480], pa.uint64()), "wrong height in row 4: Integer value 92"),
        (
            "path",
            pa.array([b"3.mp4", b"4.mp4", b"\xff.mp4"]).view(pa.string()),
            "wrong path in row 5: In chunk 0: Invalid: Invalid UTF8",
        ),
        (
            "caption",
            pa.array([b"\xe9", b"a", b"b"]).view(pa.string()),
            "wrong caption in row 3: In chunk 0: Invalid: Invalid UTF8",
        ),
        ("root", pa.array([b"/d", b"/\x80", b"/d"]).view(pa.string()), "wrong root in row 4"),
    ],
)
def test_a_wrong_column_is_named_with_its_type_or_row(catalog: Path, name: str, column: Any, said: str) -> None:
    edit(catalog, name, column)
    told = refusal(catalog)
    assert "part-000001.parquet has" in told
    assert said in told


def test_narrower_columns_and_more_of_them_are_no_trouble(catalog: Path) -> None:
    before = Catalog.open(catalog).digest()
    table = pq.read_table(file(catalog))
    edit(catalog, "height", table.column("height").cast(pa.int16()))
    edit(catalog, "root", pa.array(["/data"] * 3))
    edit(catalog, "path", table.column("path").cast(pa.string()))
    more = pq.read_table(file(catalog)).append_column("more", pa.array([[1]] * 3))
    pq.write_table(more.select(sorted(more.column_names)), file(catalog))
    assert Catalog.open(catalog).digest() == before


def test_missing_columns_are_named(catalog: Path) -> None:
    pq.write_table(pq.read_table(file(catalog)).drop_columns(["fps", "caption"]), file(catalog))
    assert "part-000001.parquet lacks the columns caption, fps\n" in refusal(catalog)


def test_two_live_rows_of_a_uid_are_named(catalog: Path) -> None:
    """A retired row may share its uid, as an edited file's does; two that hold may not."""
    edit(catalog, "uid", pa.array([101, 104, 105], type=pa.uint64()))
    assert len(Catalog.open(catalog).live()) == 7
    edit(catalog, "uid", pa.array([100, 104, 105], type=pa.uint64()))
    assert "two live rows have the uid 100: 0.mp4, 3.mp4\n" in refusal(catalog)


@pytest.mark.parametrize("ordinals", [[3], [-1]])
def test_a_retired_row_must_be_an_earlier_one(catalog: Path, ordinals: list[int]) -> None:
    pq.write_table(pa.table({"ordinal": ordinals}), catalog / "retired-000001.parquet")
    assert "retires a row that is not among the 3 rows before it" in refusal(catalog)


@pytest.mark.parametrize("name", ["part-000000.parquet", "part-000001.parquet", "retired-000001.parquet"])
def test_a_part_that_is_gone_short_or_torn_is_named(catalog: Path, name: str) -> None:
    path = catalog / name
    data, table = path.read_bytes(), pq.read_table(path)
    pq.write_table(table[:-1], path)
    assert f"{name} has {len(table) - 1} rows instead of {len(table)}\n" in refusal(catalog)
    for torn in (b"", data[: len(data) // 2], data[:-4], b"no parquet at all"):
        path.write_bytes(torn)
        assert f"{name} cannot be read: " in refusal(catalog)
    path.unlink()
    assert f"{name} cannot be read: " in refusal(catalog)
    path.mkdir()
    assert f"{name} cannot be read: " in refusal(catalog)


def test_a_byte_that_rots_is_found_or_changes_nothing(catalog: Path) -> None:
    whole, names = file(catalog).read_bytes(), SCHEMA.names
    good, found = [str(Catalog.open(catalog).live().column(name)) for name in names], 0
    for at in range(4, len(whole), 509):
        file(catalog).write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        for kept in catalog.glob("columns-*"):
            shutil.rmtree(kept)
        try:
            rows = Catalog.open(catalog).live()
            now = [str(rows.column(name)) for name in names]
        except UserError as error:
            found += "part-000001.parquet" in str(error)
        else:
            assert now == good, at  # such as one of the statistics in a header
    assert found > len(whole) // 509 / 2


ENTRY = '{"rows": 1, "retired": 0, "time": 0, "sources": []}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\udcff",
        '{"format": 1}',
        '{"format": "1", "parts": []}',
        '{"format": 1, "parts": [{"rows": 1}]}',
        '{"format": 1, "parts": [' + ENTRY.replace("1", "Infinity") + "]}",
        '{"format": 1, "parts": [' + ENTRY.replace("1", "-1") + "]}",
        '{"format": 1, "parts": [' + ENTRY.replace("1", '"many"') + "]}",
    ],
)
def test_a_damaged_index_is_refused(catalog: Path, text: str) -> None:
    (catalog / "catalog.json").write_bytes(text.encode(errors="surrogateescape"))
    assert "catalog.json cannot be read: " in refusal(catalog)


def test_a_newer_format_asks_for_an_update(catalog: Path) -> None:
    document = json.loads((catalog / "catalog.json").read_text(encoding="utf-8")) | {"format": 4}
    (catalog / "catalog.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UserError, match=r"format 4, this version reads up to 3\n  remedy: update Reelworks"):
        Catalog.open(catalog)


def test_an_older_format_asks_for_a_new_scan(catalog: Path) -> None:
    document = json.loads((catalog / "catalog.json").read_text(encoding="utf-8")) | {"format": 1}
    (catalog / "catalog.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UserError, match=r"format 1, which lacks(?s:.*)scan again"):
        Catalog.open(catalog)


def test_the_command_tells_it_without_a_traceback(
    catalog: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(catalog, "path", pa.array([b"\xff", b"4.mp4", b"5.mp4"]).view(pa.string()))
    monkeypatch.setattr(sys, "argv", ["reelworks", "inspect", str(catalog)])
    with pytest.raises(SystemExit) as left:
        main.main()
    told = capsys.readouterr().err
    assert left.value.code == 2
    assert re.search(r"path in\s+row 3", told)
    assert "remedy" in told
    assert "Traceback" not in told
