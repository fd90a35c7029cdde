from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import media_makers as media
import numpy as np
import pyarrow as pa
import pytest
from catalog_rows import PLAIN
from hypothesis import given
from hypothesis import strategies as st

from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import SCHEMA
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.catalog.store.summary import summarise


@pytest.fixture
def rows(tmp_path: Path) -> CatalogRows:
    data = tmp_path / "data"
    media.write_picture(data / "tall.png", size=(270, 480))
    media.write_picture(data / "square.png", size=(720, 720))
    media.write_picture(data / "wide.png", size=(320, 180))
    media.write_video(data / "clip.mp4", num_frames=20)
    (data / "clip.txt").write_text("grey", encoding="utf-8")
    (data / "tall.txt").write_text("", encoding="utf-8")
    (data / "empty.mp4").write_bytes(b"")
    for name in ("x.png", "y.png"):
        (data / name).write_bytes(b"x" * len(name))
    scan_sources([Source("data", data)], tmp_path / "catalog", workers=1)
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
    assert json.loads(json.dumps(asdict(found)))["bad"] == 3


def test_an_empty_catalog_has_nothing() -> None:
    found = summarise(CatalogRows.from_table(SCHEMA.empty_table()))
    assert (found.clips, found.by_kind, found.fps, found.captions_empty) == (0, [], [], 0)


def of_score(*values: float) -> list[tuple[str, int]]:
    """Classes of a score that some clips have."""
    plain = {"dataset": "d", "root": "/d", "kind": "image", "fingerprint": "f", "codec": "png"}
    plain |= {"pixel_format": "RGB", "num_frames": 1, "height": 9, "width": 9, "path": "a", "group": "a"}
    flags = {"first_frame": 0, "cut": "", "caption": None, "error": None}
    full = [{f.name: 0 for f in SCHEMA} | PLAIN | plain | flags for _ in values]
    rows = CatalogRows.from_table(pa.Table.from_pylist(full, schema=SCHEMA))
    return summarise(rows.replaced(scores={"aes": np.array(values)})).scores.get("aes", [])


def test_scores_are_told_in_round_classes() -> None:
    """A value at an edge belongs to the class that begins there; clips without the score are counted."""
    assert of_score(4.2, 4.6, 4.59, 5.8, np.nan) == [
        ("none", 1),
        ("4.2–4.4", 1),
        ("4.4–4.6", 1),
        ("4.6–4.8", 1),
        ("5.8–6", 1),
    ]
    assert of_score(0, 9, 9) == [("0–1", 1), ("9–10", 2)]
    assert of_score(3, 3) == [("3", 2)]
    assert of_score(np.nan, np.nan) == []


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_any_scores_have_few_classes(values: list[float]) -> None:
    """Whatever their sizes and distances, every value is counted once, in a dozen classes at most."""
    found = of_score(*values)
    assert sum(count for _, count in found) == len(values)
    assert len(found) <= 12
