"""A catalog whose videos an earlier version measured has them opened again once, and keeps what was right."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import media_makers as media
import numbered_films as films
import pytest

from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.scan.scan import ScanResult, scan_sources
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.media import probe


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    media.write_video(folder / "plain.mp4")
    media.write_picture(folder / "a.png", size=(32, 32))
    whole = films.write(tmp_path / "whole.ts", range(40), options=films.OPEN)
    films.copy(whole, folder / "cut.ts", first=films.second_key(whole))
    return folder


def scan(data: Path, **changes: object) -> tuple[ScanResult, dict[str, dict]]:
    place = DatasetConfig(path=str(data), **changes).place
    result = scan_sources([place], data.parent / "catalog", workers=1)
    rows = Catalog.open(data.parent / "catalog").live().to_table().to_pylist()
    return result, {f"{row['path']}:{row['first_frame']}": row for row in rows}


def counts(result: ScanResult) -> tuple[int, int, int, int]:
    return result.new, result.changed, result.unchanged, result.removed


def scan_as_before(data: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> dict[str, dict]:
    """Scan as a version did that counted one frame more of films that were cut."""
    measured = probe.probe

    def as_before(path: Path) -> probe.Probe:
        found = measured(path)
        return dataclasses.replace(found, num_frames=found.num_frames + 1) if path.name == "cut.ts" else found

    with monkeypatch.context() as patch:
        patch.setattr(probe, "VERSION", 1)
        patch.setattr(probe, "probe", as_before)
        return scan(data, **changes)[1]


def test_what_was_wrong_is_measured_again_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scan_as_before(data, monkeypatch)
    again, rows = scan(data)
    assert counts(again) == (0, 1, 2, 0)
    assert rows["cut.ts:0"]["num_frames"] == before["cut.ts:0"]["num_frames"] - 1
    unlike = {name for name, row in rows.items() if row != before[name]}
    assert unlike == {"cut.ts:0"}, "rows that were right keep their numbers"
    assert any("data were opened again" in note for note in again.notes)
    once_more, _ = scan(data)
    assert counts(once_more) == (0, 0, 3, 0)
    assert once_more.version == again.version
    assert not any("opened again" in note for note in once_more.notes)


def test_a_catalog_that_was_right_is_asked_once_too(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "cut.ts").unlink()
    before = scan_as_before(data, monkeypatch)
    again, rows = scan(data)
    assert (counts(again), rows) == ((0, 0, 2, 0), before)
    assert scan(data)[0].notes == ()


def test_videos_that_were_cut_into_clips_are_cut_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan_as_before(data, monkeypatch, clip_seconds=0.5)
    _, rows = scan(data, clip_seconds=0.5)
    assert all(row["error"] is None for row in rows.values())
    frames = sum(row["num_frames"] for row in rows.values() if row["path"] == "cut.ts")
    assert frames == probe.probe(data / "cut.ts").num_frames
    assert counts(scan(data, clip_seconds=0.5)[0])[:2] == (0, 0)


def test_the_scan_tells_what_is_odd_about_videos(data: Path) -> None:
    films.write(data / "b.avi", range(20), options=films.B3)
    told = scan(data)[0].notes
    assert [note.split(";")[0] for note in told] == [
        "1 file with frames that cannot be found by their times",
        "1 file with frames at the start that no player shows, since those that they refer to were cut off",
    ]
    assert [note.rpartition("/")[2] for note in told] == ["b.avi", "cut.ts"]
