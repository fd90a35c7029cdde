"""A catalog shows exactly what was committed, or says which file of it is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path

import catalog_media as media
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reelworks.catalog.rows import SCHEMA
from reelworks.catalog.scan import Source, scan
from reelworks.catalog.store import Catalog
from reelworks.catalog.update import uids_of
from reelworks.core import draws
from reelworks.core.errors import UserError
from reelworks.run import lock


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for i, name in enumerate("cab"):
        media.write_picture(folder / f"{name}.png", i)
    (folder / "a.txt").write_text("grün")
    return folder


@pytest.fixture
def catalog(data: Path, tmp_path: Path) -> Path:
    """Two versions: three pictures; then one changed and one gone."""
    scan([Source("d", data)], tmp_path / "catalog", workers=1)
    media.write_picture(data / "a.png", 9, size=(7, 5))
    (data / "b.png").unlink()
    scan([Source("d", data)], tmp_path / "catalog", workers=1)
    return tmp_path / "catalog"


def edit_part(catalog: Path, name: str, value: object, part: int = 0) -> None:
    """Replace a column's first value."""
    file = catalog / f"part-{part:06d}.parquet"
    table = pq.read_table(file)
    place = table.schema.get_field_index(name)
    values = [value, *table.column(name).to_pylist()[1:]]
    field = table.schema.field(name).with_nullable(True)
    pq.write_table(table.set_column(place, field, pa.array(values, type=field.type)), file)


def test_rows_are_sorted_by_uid_and_numbered_for_ever(catalog: Path) -> None:
    everything = Catalog.open(catalog).all_rows()
    assert everything.ordinal.tolist() == [0, 1, 2, 3]
    assert everything.uid[:3].tolist() == sorted(everything.uid[:3].tolist())
    assert everything.path[3].as_py() == "a.png"


def test_each_version_stays_readable(catalog: Path) -> None:
    first, second = Catalog.open(catalog, version=1), Catalog.open(catalog)
    assert (first.version, second.version) == (1, 2)
    assert sorted(first.live().path.to_pylist()) == ["a.png", "b.png", "c.png"]
    assert sorted(second.live().path.to_pylist()) == ["a.png", "c.png"]
    assert len(Catalog.open(catalog, version=0).live()) == 0
    assert first.digest() != second.digest()
    assert first.digest() == Catalog.open(catalog, version=1).digest()


def test_live_ordinals(catalog: Path) -> None:
    uids = uids_of("d", ["a.png", "b.png", "nothing.png"])
    assert uids[0] == draws.hash_int("d", "a.png")
    found = Catalog.open(catalog).live_ordinals(uids).tolist()
    assert found == [3, -1, -1]
    assert Catalog.open(catalog, 0).live_ordinals(uids).tolist() == [-1, -1, -1]


def test_rows_as_arrays(catalog: Path, data: Path) -> None:
    rows = Catalog.open(catalog).live()
    place = int(rows.find(uids_of("d", ["a.png"]))[0])
    assert (rows.width[place], rows.height[place], rows.num_frames[place]) == (7, 5, 1)
    assert rows.file(place) == data / "a.png"
    assert rows.caption[place].as_py() == "grün"
    assert rows.group[place].as_py() == "a.png"
    assert rows.dataset.to_pylist() == ["d", "d"]
    assert rows.readable.all()
    assert rows.to_table().schema == SCHEMA
    assert rows.take(np.array([place])).path.to_pylist() == ["a.png"]


def test_digest_sees_captions_and_how_they_are_missing(catalog: Path) -> None:
    table = Catalog.open(catalog).live().to_table()
    place = table.schema.get_field_index("caption")
    variants = [["x", "y"], ["xy", ""], ["xy", None], [None, "xy"]]
    digests = set()
    for captions in variants:
        column = pa.array(captions, type=pa.large_string())
        changed = table.set_column(place, SCHEMA.field("caption"), column)
        rows = Catalog.open(catalog).live().from_table(changed)
        assert rows.digest() == rows.from_table(pa.concat_tables([changed[:1], changed[1:]])).digest()
        digests.add(rows.digest())
    assert len(digests) == len(variants)


def test_what_a_crash_left_is_written_over(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "catalog"
    folder.mkdir()
    (folder / "part-000000.parquet").write_bytes(b"half a part")
    scan([Source("d", data)], folder, workers=1)
    assert len(Catalog.open(folder).live()) == 3


def test_nothing_is_named_before_it_is_written(data: Path, tmp_path: Path, monkeypatch) -> None:
    scan([Source("d", data)], tmp_path / "catalog", workers=1)
    before = Catalog.open(tmp_path / "catalog").digest()
    media.write_picture(data / "new.png")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("reelworks.core.files.write_json", crash)
        with pytest.raises(KeyboardInterrupt):
            scan([Source("d", data)], tmp_path / "catalog", workers=1)
    assert (tmp_path / "catalog" / "part-000001.parquet").exists()
    assert Catalog.open(tmp_path / "catalog").digest() == before
    assert scan([Source("d", data)], tmp_path / "catalog", workers=1).new == 1


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("fps", math.nan, "fps = nan"),
        ("duration_seconds", math.inf, "duration_seconds = inf"),
        ("size_bytes", -1, "size_bytes = -1"),
        ("height", 0, "height = 0"),
        ("ordinal", 5, "ordinals"),
        ("uid", None, "cannot be read"),
    ],
)
def test_impossible_values_are_refused(catalog: Path, column: str, value: object, message: str) -> None:
    edit_part(catalog, column, value)
    with pytest.raises(UserError, match=f"damaged.*{message}"):
        Catalog.open(catalog).live()


def test_two_live_rows_of_a_uid_are_refused(catalog: Path) -> None:
    uid = pq.read_table(catalog / "part-000000.parquet").column("uid").to_pylist()[1]
    edit_part(catalog, "uid", uid)
    with pytest.raises(UserError, match=rf"two live rows have the uid {uid}: \w\.png, \w\.png"):
        Catalog.open(catalog, version=1).live()


def test_a_retired_row_must_exist(catalog: Path) -> None:
    pq.write_table(pa.table({"ordinal": [0, 3]}), catalog / "retired-000001.parquet")
    with pytest.raises(UserError, match="not among the 3 before it"):
        Catalog.open(catalog).live()


def test_missing_columns_are_named(catalog: Path) -> None:
    file = catalog / "part-000000.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["fps", "caption"]), file)
    with pytest.raises(UserError, match="lacks the columns caption, fps"):
        Catalog.open(catalog).live()


def test_more_columns_are_no_trouble(catalog: Path) -> None:
    file = catalog / "part-000000.parquet"
    table = pq.read_table(file)
    before = Catalog.open(catalog).digest()
    pq.write_table(table.append_column("more", pa.array([1] * len(table))), file)
    assert Catalog.open(catalog).digest() == before


def test_bytes_that_rot_are_found(catalog: Path) -> None:
    file = catalog / "part-000000.parquet"
    data = bytearray(file.read_bytes())
    data[60] ^= 0x10
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"part-000000\.parquet cannot be read"):
        Catalog.open(catalog).live()


@pytest.mark.parametrize("name", ["part-000000.parquet", "retired-000001.parquet"])
def test_absent_and_short_parts_are_found(catalog: Path, name: str) -> None:
    table = pq.read_table(catalog / name)
    pq.write_table(table[:-1], catalog / name)
    with pytest.raises(UserError, match=f"{name} has {len(table) - 1} rows instead of {len(table)}"):
        Catalog.open(catalog).live()
    (catalog / name).unlink()
    with pytest.raises(UserError, match=f"{name} cannot be read"):
        Catalog.open(catalog).live()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "parts": [{"rows": 1}]}'])
def test_a_damaged_index_is_refused(catalog: Path, text: str) -> None:
    (catalog / "catalog.json").write_text(text)
    with pytest.raises(UserError, match=r"catalog\.json cannot be read"):
        Catalog.open(catalog)


def test_a_newer_format_asks_for_an_update(catalog: Path) -> None:
    document = json.loads((catalog / "catalog.json").read_text()) | {"format": 2}
    (catalog / "catalog.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="format 2, this version reads up to 1"):
        Catalog.open(catalog)


def test_no_catalog_and_no_such_version(catalog: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="reelworks scan DIR"):
        Catalog.open(tmp_path)
    with pytest.raises(UserError, match="its newest is 2"):
        Catalog.open(catalog, version=3)


def test_only_one_scan_writes(catalog: Path, data: Path) -> None:
    with lock.hold(catalog / ".lock", doing="scan"), pytest.raises(UserError, match="another scan"):
        scan([Source("d", data)], catalog, workers=1)
    assert scan([Source("d", data)], catalog, workers=1).unchanged == 2


def test_a_folder_that_cannot_be_written(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        scan([Source("d", data)], tmp_path / "file", workers=1)
