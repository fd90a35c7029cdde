"""Columns come from the values of the version and the columns that were measured last, also where no clip has any."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import prepare_files
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_measure_catalog import column, measure, scan, write

from reelworks.core import storage
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.store import kept_measures
from reelworks.training.recipe.dataset import RecipeData

OWN = '''
from reelworks.data.catalog.store.measured_columns import Column


class Own:
    """The numbers 1, 2, … in its columns."""

    name, version, reads = "own", {version}, ("stills",)
    columns = tuple(Column(name, "", "a number") for name in {names})

    def values(self, clip):
        return tuple({version} + number for number in range(len(self.columns)))
'''


def own(tmp_path: Path, version: int, *names: str) -> str:
    """Write the class to a file of its own, as another process would read it anew, and return its entry."""
    folder = tmp_path / f"code{len(list(tmp_path.glob('code*')))}"
    folder.mkdir()
    (folder / "own.py").write_text(OWN.format(version=version, names=names), encoding="utf-8")
    return f"{folder}/own.py:Own"


@pytest.fixture(autouse=True)
def _takes_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let classes of one name follow each other, as in processes that follow each other."""
    from reelworks.annexes.quality import registry

    monkeypatch.setattr(registry, "register", lambda kind: (registry._add_columns(kind), kind)[1])


def test_further_columns_of_the_same_version_are_measured_and_none_is_lost(
    tmp_path: Path, decoded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "d" / "a.png", 1)
    scan(tmp_path)
    measure(tmp_path, own(tmp_path, 1, "first"))
    assert measure(tmp_path, own(tmp_path, 1, "first", "second")).measured == 1
    write(tmp_path / "d" / "b.png", 2)
    scan(tmp_path)
    with caplog.at_level("WARNING", "reelworks"):
        assert measure(tmp_path, own(tmp_path, 1, "first", "third")).measured == 2
        assert measure(tmp_path, own(tmp_path, 1, "second", "first")).measured == 1
    assert "damaged" not in caplog.text
    assert column(tmp_path, "first") == {"a.png": 1.0, "b.png": 2.0}


def test_copies_get_values_of_the_version_that_was_measured_last(tmp_path: Path, decoded: list[str]) -> None:
    write(tmp_path / "d" / "a.png", 1)
    scan(tmp_path)
    for version in (1, 2, 1):
        measure(tmp_path, own(tmp_path, version, "first"))
    assert column(tmp_path, "first") == {"a.png": 1.0}
    (tmp_path / "e").mkdir()
    shutil.copy(tmp_path / "d" / "a.png", tmp_path / "d" / "copy.png")
    scan(tmp_path)
    assert column(tmp_path, "first") == {"a.png": 1.0, "copy.png": 1.0}


def test_a_column_without_any_value_is_there(tmp_path: Path, decoded: list[str]) -> None:
    write(tmp_path / "data" / "a.png", 1).with_suffix(".txt").write_text("a scene", encoding="utf-8")
    named = [{"path": str(tmp_path / "data"), "filter": "kind == 'image' or motion > 2"}]
    made = prepare_files.recipe(tmp_path, dataset=named, data={"measures": ["sharpness"]})
    data = prepare_files.opened(prepare_files.recipe(tmp_path, dataset=named, data={"measures": ["motion"]}))
    assert data.excluded.tolist() == [Reason.NONE]
    again = prepare_files.opened(made)  # another measure writes its columns beside it
    assert {"motion", "sharpness"} <= again.rows.scores.keys()
    assert RecipeData.open(made).catalog.version == again.catalog.version
    assert DatasetConfig(path="d", filter="motion > 2").filter


@pytest.mark.slow
def test_what_replaced_a_file_since_the_scan_gets_no_value_of_its_former_content(
    tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from reelworks.annexes.quality import sampling

    for name in ("a", "b", "c"):
        write(tmp_path / "d" / f"{name}.png", ord(name))
    scan(tmp_path)
    write(tmp_path / "d" / "a.png", 7)
    real = sampling.sample

    def replaces_b(request: sampling.MeasureRequest, *reads: frozenset[str]) -> object:
        clip = real(request, *reads)
        if request.clip.path.name == "b.png":
            write(tmp_path / "d" / "b.png", 8)
        return clip

    monkeypatch.setattr(sampling, "sample", replaces_b)
    result = measure(tmp_path, "sharpness")
    reason = "the file has changed since it was scanned; scan again"
    assert result.failed == (("d/a.png", reason), ("d/b.png", reason))
    monkeypatch.undo()
    before = column(tmp_path, "sharpness")
    assert [name for name, value in before.items() if value == value] == ["c.png"]
    scan(tmp_path)
    assert measure(tmp_path, "sharpness").measured == 2
    assert all(value == value for value in column(tmp_path, "sharpness").values())


def test_a_file_that_was_touched_is_measured(tmp_path: Path, decoded: list[str]) -> None:
    """Of the same content, before it is scanned again and after it."""
    file = write(tmp_path / "d" / "a.png", 1)
    scan(tmp_path)
    for name in ("sharpness", "exposure"):
        os.utime(file, (1, 1))
        assert measure(tmp_path, name).failed == ()
        scan(tmp_path)
    assert not np.isnan(column(tmp_path, "sharpness")["a.png"])


def test_a_copy_of_a_segment_by_another_program_is_left_alone(tmp_path: Path, decoded: list[str]) -> None:
    write(tmp_path / "d" / "a.png", 1)
    scan(tmp_path)
    measure(tmp_path, "sharpness")
    folder = tmp_path / "catalog" / kept_measures.NAME
    copy = folder / "000000 (conflicted copy).parquet"
    shutil.copy(folder / "000000.parquet", copy)
    measure(tmp_path, "exposure")
    assert [path.name for path in sorted(folder.glob("*.parquet"))] == [copy.name, "000000.parquet", "000001.parquet"]


def test_columns_that_were_complete_stay_so_when_others_are_added(
    tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from reelworks.annexes.quality import run

    write(tmp_path / "d" / "a.png", 1)
    scan(tmp_path)
    measure(tmp_path, "sharpness", "duplicates")
    measure(tmp_path, "exposure")
    monkeypatch.setattr(run, "_pending", lambda *_: pytest.fail("each clip is looked at"))
    assert measure(tmp_path, "sharpness", "exposure", "duplicates").measured == 0


def test_nothing_is_taken_of_a_segment_whose_end_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clips are measured again, those too whose values were read before the damage was seen."""
    monkeypatch.setattr(kept_measures, "_BATCH", 10)
    keys, numbers = np.arange(100, dtype=np.uint64), np.random.default_rng(0).random(100)
    table = pa.table({"key": keys, "motion@1:static": numbers})
    file = tmp_path / kept_measures.NAME / "000000.parquet"
    file.parent.mkdir()
    pq.write_table(table, file, data_page_size=80, write_batch_size=10, use_dictionary=False, write_page_checksum=True)
    kept = kept_measures.KeptMeasures(tmp_path)
    assert not kept.values(["motion@1:static"], keys).mask.any()
    content = bytearray(file.read_bytes())
    content[content.index(numbers[90:].tobytes()[:8])] ^= 1
    file.write_bytes(content)
    assert kept.values(["motion@1:static"], keys).mask.all()


def test_a_disk_that_is_full_while_segments_are_joined_costs_no_value(tmp_path: Path) -> None:
    kept, labels, keys = kept_measures.KeptMeasures(tmp_path), ["motion@1:static"], np.arange(33, dtype=np.uint64)
    for key in range(32):
        kept.add([key], [{labels[0]: 0.5}])
    renamed = []

    def full(call: str, path: Path) -> None:
        if call == "rename":
            renamed.append(path)
        elif call == "write" and renamed:  # the 33rd has its place: this is the one of all
            raise OSError(errno.ENOSPC, "no space left")

    with storage.guarded(full), pytest.raises(OSError, match="no space left"):
        kept.add([32], [{labels[0]: 0.5}])
    assert not kept_measures.KeptMeasures(tmp_path).values(labels, keys).mask.any()
    kept.add([33], [{labels[0]: 0.5}])
    assert len(list((tmp_path / kept_measures.NAME).glob("*.parquet"))) == 1
    assert not kept_measures.KeptMeasures(tmp_path).values(labels, keys).mask.any()


def test_a_catalog_in_which_no_clip_can_be_read_gets_its_columns(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "torn.png").write_bytes(b"no picture")
    scan(tmp_path)
    result = measure(tmp_path, "duplicates", "exposure")
    assert (result.clips, result.failed) == (0, ())
    assert {summary.present for summary in result.columns} == {0}
