"""Mapped columns are the columns that are read, one process writes each, and what is damaged is written anew."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import media_makers as media
import pyarrow as pa
import pytest

from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.store import column_files
from reelworks.data.catalog.store.schema import DERIVED, SCHEMA, TEXT
from reelworks.data.catalog.store.store import Catalog

NAMES = [*SCHEMA.names, *DERIVED]


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """Two versions: of three pictures, one without a caption and one broken, one is gone; then comes another dataset."""
    data, other = tmp_path / "data", tmp_path / "other"
    for i, name in enumerate("cab"):
        media.write_picture(data / f"{name}.png", i)
    (data / "a.txt").write_text("grün", encoding="utf-8")
    (data / "broken.png").write_text("no picture", encoding="utf-8")
    media.write_picture(other / "z.png", 7)
    scan_sources([Source("d", data)], tmp_path / "catalog", workers=1)
    (data / "b.png").unlink()
    scan_sources([Source("d", data), Source("e", other)], tmp_path / "catalog", workers=1)
    return tmp_path / "catalog"


def columns(catalog: Path) -> dict[str, list]:
    rows = Catalog.open(catalog).live()
    return {name: rows.column(name).tolist() for name in NAMES} | {
        "range": rows.is_range.tolist(),
        "digest": [rows.digest()],
    }


@pytest.fixture
def mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_files, "FROM_ROWS", 1)


@pytest.fixture
def read(catalog: Path) -> dict[str, list]:
    return columns(catalog)


def folder_of(catalog: Path) -> Path:
    (folder,) = catalog.glob("columns-*")
    return folder


def test_mapped_columns_are_those_that_are_read(catalog, read, mapping) -> None:
    assert columns(catalog) == read
    assert {file.name.split(".")[0] for file in folder_of(catalog).iterdir()} >= {*NAMES, "alive"}
    with pytest.raises(ValueError, match="read-only"):
        Catalog.open(catalog).live().uid[0] = 0


@pytest.mark.parametrize("word", ["grün", None])
def test_texts_may_be_parts_of_an_array(tmp_path: Path, word: str | None) -> None:
    texts = pa.array(["a", "bc", "def", word, "", "g"], TEXT)
    opened = column_files.ColumnFiles.open(tmp_path / "columns-1")
    assert opened is not None
    found = opened.get("t", lambda: [texts.slice(1, 2), texts.slice(3)])
    assert found.to_pylist() == texts.to_pylist()[1:]


def test_a_damaged_file_is_written_anew(catalog, read, mapping) -> None:
    parts = ("uid.values", "uid.json", "caption.valid", "caption.bytes", "alive.values", "kind.json")
    for damage in ("torn", "changed", "gone"):
        columns(catalog)
        for part in parts:
            hurt = folder_of(catalog) / part
            whole = hurt.read_bytes()
            hurt.unlink()
            if damage != "gone":
                hurt.write_bytes(whole[: len(whole) // 2] if damage == "torn" else bytes(len(whole)))
        assert columns(catalog) == read, damage


@pytest.mark.parametrize("disk", ["full", "almost full"])
def test_a_folder_that_cannot_be_written_costs_memory_alone(catalog, read, mapping, monkeypatch, disk: str) -> None:
    if disk == "full":
        monkeypatch.setattr(column_files.storage, "fsync", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    else:  # checkpoints need the rest
        monkeypatch.setattr(column_files.shutil, "disk_usage", lambda _: SimpleNamespace(total=100, free=4))
    assert columns(catalog) == read
    assert not [file for file in folder_of(catalog).iterdir() if file.suffix != ".lock"]


@pytest.mark.slow
def test_columns_of_another_version_stay_while_they_are_used(catalog, read, mapping) -> None:
    used = Catalog.open(catalog, 1)
    first = used.live().path.to_pylist()
    (former,) = catalog.glob("columns-000001-*")
    assert columns(catalog) == read
    assert former.exists()
    assert used.live().path.to_pylist() == first
    del used
    gc.collect()
    (catalog / "columns-000009-00000000").mkdir()  # of nobody
    columns(catalog)
    assert [path.name[:14] for path in catalog.glob("columns-*")] == ["columns-000002"]


@pytest.mark.slow
def test_processes_write_each_column_once_and_plan_once(catalog, tmp_path) -> None:
    """Each process tells the digest of its plan, how many plans it made, and how many columns it wrote."""
    code = f"""
from pathlib import Path
import reelworks as rw
from reelworks.data.catalog.store import column_files
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import dataset
from reelworks.data.run.folder import RunFolder
column_files.FROM_ROWS = 1
written, made, write, plan = [], [], column_files.ColumnFiles._write, dataset.plan_epoch
column_files.ColumnFiles._write = lambda *a: (written.append(a[1]), write(*a))
dataset.plan_epoch = lambda *a: (made.append(1), plan(*a))[1]
table = rw.BucketTable.from_entries([rw.BucketEntry("8px", num_frames=[1], batch_size=[2])],
                                    geometry=rw.Geometry((1, 1, 1), (1, 1, 1)), upscale=True)
catalog = Catalog.open({str(catalog)!r})
data = rw.Dataset(catalog, table, seed=3, run=RunFolder(Path({str(tmp_path / "run")!r})))
plan = data.plan(data.plan_spec(2, 2), 0)
catalog.live().load(*{NAMES!r})
print(plan.digest(), len(plan.uid), len(made), *written)
"""
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, encoding="utf-8")
        for _ in range(2)
    ]
    told = [process.communicate()[0].split() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert told[0][:2] == told[1][:2]
    assert int(told[0][2]) + int(told[1][2]) == 1
    written = told[0][3:] + told[1][3:]
    assert sorted(written) == sorted(set(written))
    assert {*NAMES, "alive"} <= set(written)
