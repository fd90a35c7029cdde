"""A catalog shows exactly what was committed."""

from __future__ import annotations

from pathlib import Path

import media_makers as media
import numpy as np
import pyarrow as pa
import pytest
from refused import refused

from reelworks.core import hash_rng
from reelworks.core.errors import UserError
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.scan.update import uids_of
from reelworks.data.catalog.store.part_files import PartFile
from reelworks.data.catalog.store.schema import SCHEMA
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.run import lock


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for i, name in enumerate("cab"):
        media.write_picture(folder / f"{name}.png", i)
    (folder / "a.txt").write_text("grün", encoding="utf-8")
    return folder


@pytest.fixture
def catalog(data: Path, tmp_path: Path) -> Path:
    """Two versions: three pictures; then one changed and one gone."""
    scan_sources([Source("d", data)], tmp_path / "catalog", workers=1)
    media.write_picture(data / "a.png", 9, size=(7, 5))
    (data / "b.png").unlink()
    scan_sources([Source("d", data)], tmp_path / "catalog", workers=1)
    return tmp_path / "catalog"


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


def test_a_clip_is_found_by_its_uid_in_a_version_that_has_it(catalog: Path) -> None:
    uids = uids_of("d", ["a.png", "b.png", "nothing.png"])
    assert uids[0] == hash_rng.hash_int("d", "a.png")
    live = Catalog.open(catalog).live()
    places = live.find(uids)
    assert places.tolist()[1:] == [-1, -1]
    assert live.ordinal[places[0]] == 3
    assert Catalog.open(catalog, 0).live().find(uids).tolist() == [-1, -1, -1]


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
    scan_sources([Source("d", data)], folder, workers=1)
    assert len(Catalog.open(folder).live()) == 3


def test_nothing_is_named_before_it_is_written(data: Path, tmp_path: Path, monkeypatch) -> None:
    scan_sources([Source("d", data)], tmp_path / "catalog", workers=1)
    before = Catalog.open(tmp_path / "catalog").digest()
    media.write_picture(data / "new.png")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("reelworks.core.files.write_json", crash)
        with pytest.raises(KeyboardInterrupt):
            scan_sources([Source("d", data)], tmp_path / "catalog", workers=1)
    assert (tmp_path / "catalog" / "part-000001.parquet").exists()
    assert Catalog.open(tmp_path / "catalog").digest() == before
    assert scan_sources([Source("d", data)], tmp_path / "catalog", workers=1).new == 1


def test_no_catalog_and_no_such_version(catalog: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Catalog\.scan\(FOLDER"):
        Catalog.open(tmp_path / "none")
    with pytest.raises(UserError, match="its newest is 2"):
        Catalog.open(catalog, version=3)


def test_only_one_scan_writes(catalog: Path, data: Path) -> None:
    with lock.hold(catalog / ".lock", doing="scan"), pytest.raises(UserError, match="another scan"):
        scan_sources([Source("d", data)], catalog, workers=1)
    assert scan_sources([Source("d", data)], catalog, workers=1).unchanged == 2


def test_a_folder_that_cannot_be_written(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be written"):
        scan_sources([Source("d", data)], tmp_path / "file", workers=1)


def test_rows_that_are_not_taken_are_not_read(data: Path, catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "defgh":
        media.write_picture(data / f"{name}.png")
        scan_sources([Source("d", data)], catalog, workers=1)
    paths = Catalog.open(catalog).live().path.to_pylist()
    assert len(paths) == 7
    rows = Catalog.open(catalog).live()
    read: list[str] = []
    values = PartFile.read
    monkeypatch.setattr(PartFile, "read", lambda file, *args: (read.append(file.path.name), values(file, *args))[1])
    assert len(rows.take(np.zeros(0, np.int64)).path) == 0
    assert not read
    taken = rows.take(np.array([3, 5, 6]))
    assert taken.take(np.array([0, 2])).path.to_pylist() == [paths[3], paths[6]]
    assert len(read) == 2
    assert taken.take(np.array([2, 0])).path.to_pylist() == [paths[6], paths[3]]
    assert rows.labels(np.array([5, 3, 5])) == [f"d/{paths[i]}" for i in (5, 3, 5)]
    assert "path" not in vars(rows)


def test_a_folder_of_footage_or_of_a_run_is_told_from_a_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    footage, run = tmp_path / "my clips", tmp_path / "run"
    media.write_picture(footage / "a.png")
    Catalog.scan(footage, to=run / "catalog")
    for folder, remedy in (
        (footage, f'Catalog.scan("{footage}", to=CATALOG)'),
        (run, f"did you mean {run / 'catalog'}?"),
        (tmp_path / "new", f'Catalog.scan(FOLDER, to="{tmp_path / "new"}")'),
    ):
        with refused("no-catalog", "path") as caught:
            Catalog.open(folder)
        assert remedy in caught.value.remedy
    monkeypatch.setattr("os.access", lambda *_: False)  # as for a user to whom the folder is closed; root may read all
    with refused("no-catalog", "path", says="this folder cannot be read\n.*permissions"):
        Catalog.open(run / "catalog")
