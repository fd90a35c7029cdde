from __future__ import annotations

import json
from pathlib import Path

import media_makers as media
import pytest

from reelworks.catalog.rows import SCHEMA, CatalogRows
from reelworks.catalog.scan import Source, scan
from reelworks.catalog.store import Catalog
from reelworks.catalog.summary import summarise


@pytest.fixture
def rows(tmp_path: Path) -> CatalogRows:
    data = tmp_path / "data"
    data.mkdir()
    media.write_picture(data / "tall.png", size=(270, 480))
    media.write_picture(data / "square.png", size=(720, 720))
    media.write_picture(data / "wide.png", size=(320, 180))
    media.write_video(data / "clip.mp4", num_frames=20)
    (data / "clip.txt").write_text("grey")
    (data / "tall.txt").write_text("")
    (data / "empty.mp4").write_bytes(b"")
    for name in ("x.png", "y.png"):
        (data / name).write_bytes(b"x" * len(name))
    scan([Source("data", data)], tmp_path / "catalog", workers=1)
    return Catalog.open(tmp_path / "catalog").live()


def test_counts(rows: CatalogRows) -> None:
    found = summarise(rows)
    assert (found.clips, found.bad) == (7, 3)
    assert found.by_kind == [("video", 1), ("image", 3)]
    assert found.bad_reasons == [("damaged", 2), ("zero bytes", 1)]
    assert (found.captions_missing, found.captions_empty) == (2, 1)
    assert found.resolution == [("under 144p", 1), ("144p", 1), ("240p", 1), ("720p", 1)]
    assert found.num_frames == [("1", 3), ("17–32", 1)]
    assert found.fps == [("20–24", 1)]
    assert found.aspect_ratio == [("9:16", 1), ("1:1", 1), ("4:3", 1), ("16:9", 1)]
    assert found.duration_seconds == pytest.approx(20 / 24)
    assert json.loads(json.dumps(found.to_json()))["bad"] == 3


def test_an_empty_catalog_has_nothing() -> None:
    found = summarise(CatalogRows.from_table(SCHEMA.empty_table()))
    assert (found.clips, found.by_kind, found.fps, found.captions_empty) == (0, [], [], 0)
