"""Files in columns of Parquet are those of the folders that they are unpacked to."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import media_makers as media
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from refused import refused

from reelworks.core import storage
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.scan.unpack import unpack
from reelworks.data.catalog.store.store import Catalog

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # as datasets of the hub have pictures and videos


def picture(shade: int, kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (24, 16), (shade, 90, 20)).save(file, kind)
    return file.getvalue()


def write(file: Path, **columns: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file, row_group_size=7)


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A dataset of two parts: pictures, with an empty row and names of three kinds, sources, captions and a score."""
    folder = tmp_path / "hub"
    for part in range(2):
        held = [{"bytes": picture(20 * part + i), "path": "a.jpg" if i % 2 else None} for i in range(20)]
        held[3] = {"bytes": picture(3, "PNG"), "path": "somewhere"}
        held[5] = {"bytes": None, "path": "missing.jpg"}
        write(
            folder / "data" / f"train-{part:05}-of-00002.parquet",
            image=pa.array(held, IMAGE),
            before=pa.array([picture(100 + i, "WEBP") for i in range(20)]),
            text=[f"words {part} {i}" for i in range(20)],
            path=["of somebody's disk"] * 20,
            aesthetic=[float(i) for i in range(20)],
        )
    return folder


def of_column(folder: Path, tmp_path: Path) -> list[dict[str, Any]]:
    return of_list(folder / "list.parquet", tmp_path)


def of_list(file: Path, tmp_path: Path) -> list[dict[str, Any]]:
    scan_sources([Source.from_path(file, "d")], tmp_path / "catalog", workers=1)
    return sorted(Catalog.open(tmp_path / "catalog").live().to_table().to_pylist(), key=lambda row: row["path"])


def test_a_column_becomes_a_dataset(hub: Path, tmp_path: Path) -> None:
    """Each with the captions and scores of its rows; files of a row have the same name in each, as those of sources need."""
    told: list[tuple[int, int]] = []
    out = tmp_path / "out"
    made = unpack(str(hub), out, lambda *done: told.append(done))
    assert [(one.list, one.files, one.empty) for one in made] == [
        (out / "image" / "list.parquet", 38, 2),
        (out / "before" / "list.parquet", 40, 0),
    ]
    assert told[-1] == (40, 40)
    rows = of_column(out / "image", tmp_path)
    assert [row["error"] for row in rows] == [None] * 38
    for row, (part, i) in zip(rows, ((p, i) for p in range(2) for i in range(20) if i != 5), strict=True):
        assert row["path"] == f"data/train-{part:05}-of-00002/{i:08}.{'png' if i == 3 else 'jpg' if i % 2 else 'jpeg'}"
        assert row["caption"] == f"words {part} {i}"
        expected = picture(3, "PNG") if i == 3 else picture(20 * part + i)
        assert (out / "image" / row["path"]).read_bytes() == expected
    assert pq.read_table(out / "image" / "list.parquet").column_names == ["path", "text", "aesthetic"]
    stems = {file.with_suffix("").relative_to(out / "before") for file in (out / "before").rglob("*.webp")}
    assert {file.with_suffix("").relative_to(out / "image") for file in (out / "image").rglob("*.*g")} < stems


def test_what_was_broken_off_goes_on(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is written twice, and none is half."""
    out, renamed = tmp_path / "out", list[Path]()
    real = storage.rename

    def rename(temporary: Path, path: Path) -> None:
        if len(renamed) == 30:
            raise KeyboardInterrupt
        renamed.append(path)
        real(temporary, path)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            unpack(str(hub), out, lambda *_: None)
    changed = {file: file.stat().st_mtime_ns for file in renamed}
    unpack(str(hub), out, lambda *_: None)
    assert {file: file.stat().st_mtime_ns for file in renamed} == changed
    assert len(of_column(out / "image", tmp_path)) == 38


def test_clips_are_known_without_a_name(tmp_path: Path) -> None:
    media.write_video(tmp_path / "a.mp4", num_frames=5)
    write(tmp_path / "one.parquet", video=pa.array([(tmp_path / "a.mp4").read_bytes()]), caption=["a film"])
    unpack(str(tmp_path / "one.parquet"), tmp_path / "out", lambda *_: None)
    (row,) = of_column(tmp_path / "out" / "video", tmp_path)
    assert (row["path"], row["num_frames"], row["caption"], row["error"]) == ("one/00000000.mp4", 5, "a film", None)


def test_what_holds_no_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "texts" / "a.parquet", text=["words"])
    (tmp_path / "texts" / "b.jpg").write_bytes(picture(1))
    for source in ("texts", "texts/b.jpg", "nothing"):
        with refused("nothing-to-unpack", "SOURCE", says="holds files"):
            unpack(str(tmp_path / source), tmp_path / "out", lambda *_: None)
    write(tmp_path / "named.parquet", image=pa.array([{"bytes": None, "path": "texts/b.jpg"}] * 3, IMAGE))
    with refused(
        "nothing-to-unpack", "SOURCE", says="no row of image .* it is itself a list, for the path of a dataset"
    ):
        unpack(str(tmp_path / "named.parquet"), tmp_path / "out", lambda *_: None)
    assert [row["path"] for row in of_list(tmp_path / "named.parquet", tmp_path)] == ["texts/b.jpg"]
    (tmp_path / "texts" / "a.parquet").write_bytes(b"PAR1")
    with refused("nothing-to-unpack", "SOURCE", says="cannot be read"):
        unpack(str(tmp_path / "texts"), tmp_path / "out", lambda *_: None)
    write(tmp_path / "held.parquet", image=pa.array([{"bytes": picture(1), "path": "a.jpg"}], IMAGE))
    (tmp_path / "out").write_text("a file", encoding="utf-8")
    with refused("file-unwritable", "--output"):
        unpack(str(tmp_path / "held.parquet"), tmp_path / "out", lambda *_: None)
