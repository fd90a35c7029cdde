"""A file that is not what its name says gives a reason, wherever it is read; no archive ruins a catalog."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import odd_archives
import pyarrow as pa
import pytest

from reelworks.core import user_files
from reelworks.data.catalog.store import integrity
from reelworks.data.catalog.store.schema import SCHEMA
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.run.folder import RunFolder


def test_of_a_name_twice_the_last_member_counts(tmp_path: Path) -> None:
    """As where the archive is unpacked; so it is with captions."""
    for name in ("a name twice", "a name in two spellings", "a caption twice"):
        folder = tmp_path / name
        folder.mkdir()
        odd_archives.write_tar(folder / "x.tar", odd_archives.odd_members()[name])
        rows = odd_archives.scanned(folder, tmp_path / f"catalog of {name}")
        assert {path: (row["error"], row["caption"]) for path, row in rows.items()} == (
            {"x.tar/good.png": (None, "new")}
            if name == "a caption twice"
            else {"x.tar/good.png": (None, None), "x.tar/a.png": (None, None)}
        )


def test_a_huge_caption_is_not_read(tmp_path: Path) -> None:
    members = odd_archives.odd_members()["a name twice"][:1]
    tar = odd_archives.write_tar(tmp_path / "x.tar", members)
    header = tarfile.TarInfo("good.txt")
    header.size = 8 << 30
    with tar.open("r+b") as file:
        file.seek(-1024, 2)
        file.write(header.tobuf())
        file.truncate(file.tell() + header.size + 1024)
    (row,) = odd_archives.scanned(tmp_path, tmp_path / "catalog").values()
    assert "8,589,934,592 bytes or more, and at most 1,048,576 are read" in row["error"]


def test_a_row_that_would_be_refused_is_not_written(tmp_path: Path) -> None:
    """The writer asks the reader's own check."""
    catalog = Path(tmp_path / "catalog")
    rows = odd_archives.scanned(odd_archives.picture(tmp_path / "a.png").parent, catalog)
    (row,) = rows.values()
    before = Catalog.open(catalog)
    for changed in ({"path": "../a.png"}, {"size_bytes": -1}, {"fps": float("nan")}, {"width": 0}):
        table = pa.Table.from_pylist([row | changed], schema=SCHEMA)
        assert list(integrity.problems(table)) == [0], changed
        with pytest.raises(AssertionError, match="would refuse"):
            before.append(table, before.live().ordinal, [])
    assert Catalog.open(catalog).version == before.version


@pytest.mark.parametrize(
    "read",
    [lambda path: user_files.read_bytes(path, 10), lambda path: user_files.read_text(path, 10), user_files.read_toml],
)
def test_only_so_much_is_read(read: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a" * (user_files.SETTINGS + 1))
    with pytest.raises(OSError, match="at most"):
        read(tmp_path / "a")


def test_deep_nesting_is_an_error_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("a = " + "[" * 100_000, encoding="utf-8")
    (tmp_path / "a.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match="too deeply"):
        user_files.read_toml(tmp_path / "a.toml")
    with pytest.raises(ValueError, match="too deeply"):
        user_files.read_json(tmp_path / "a.json")


def test_what_a_run_writes_into_the_dataset_s_folder_is_no_clip(tmp_path: Path) -> None:
    """Whether the folder is the run's own or has the run in it, under any name."""
    for output in (tmp_path, tmp_path / "deep" / "my_run"):
        run = RunFolder(output)
        run.create()
        for folder in (run.samples_folder / "step-000000002", run.evaluations_folder, run.exports_folder):
            folder.mkdir(parents=True, exist_ok=True)
            odd_archives.picture(folder / "00.png")
    odd_archives.picture(tmp_path / "own.png")
    assert list(odd_archives.scanned(tmp_path, tmp_path.parent / "catalog")) == ["own.png"]
