"""A scan that is killed at any moment goes on where it was, and the catalog is that of a scan which was not."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import killing
import media_makers as media
import places
import pytest
from killed_scans import lines, shown, write_pictures

from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import journal
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.store.store import Catalog

FILES = 240
IN_FLIGHT = 4 * 8 + 1  # files whose results one worker may have, while the journal has those before them


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "data", FILES)


def begin(data: Path, catalog: Path, opened: Path) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("scan_and_die.py")
    return subprocess.Popen([sys.executable, str(script), str(data), str(catalog), str(opened)])


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_scan_goes_on(data: Path, tmp_path: Path, kills: int) -> None:
    catalog, opened = tmp_path / "catalog", tmp_path / "opened"
    draw = random.Random(5)
    for until in sorted(draw.sample(range(40, FILES - 40), kills)):
        process = begin(data, catalog, opened)
        while lines(opened) < until and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        assert process.wait() == killing.KILLED
        assert not (catalog / "catalog.json").exists()
    kept = lines(catalog / journal.NAME) - 1
    assert kept > 40
    (data / "1.txt").write_text("another caption", encoding="utf-8")  # which the journal must not hide
    before = lines(opened)
    assert begin(data, catalog, opened).wait() == 0
    assert lines(opened) - before <= FILES - kept + 1
    assert lines(opened) <= FILES + kills * IN_FLIGHT
    assert not (catalog / journal.NAME).exists()
    scan_sources([Source("d", data)], tmp_path / "uninterrupted", workers=1)
    assert shown(catalog) == shown(tmp_path / "uninterrupted")


class Killed(BaseException):
    """The process is gone."""


def interrupted(data: Path, catalog: Path, monkeypatch: pytest.MonkeyPatch, cut: str = "") -> None:
    """Scan until the rows are to be written."""

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "append", die)
        with pytest.raises(Killed):
            scan_sources([Source("d", data, cut=cut)], catalog, workers=1)


def test_what_changed_since_is_examined_again_and_a_torn_line_dropped(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = tmp_path / "catalog"
    interrupted(data, catalog, monkeypatch)
    assert lines(catalog / journal.NAME) == FILES + 2  # the first and the last are its own
    media.write_picture(data / "3.png", size=(7, 5))
    (data / "4.png").unlink()
    with (catalog / journal.NAME).open("ab") as file:
        file.write(b'0123456789abcdef{"file": "to')
    result = scan_sources([Source("d", data)], catalog, workers=1)
    assert (result.found, result.new, result.version) == (FILES - 1, FILES - 1, 1)
    scan_sources([Source("d", data)], tmp_path / "uninterrupted", workers=1)
    assert shown(catalog) == shown(tmp_path / "uninterrupted")


def test_a_file_of_the_same_size_that_was_written_since_is_examined_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, catalog = write_pictures(tmp_path / "data", 4), tmp_path / "catalog"
    interrupted(data, catalog, monkeypatch)
    former = (data / "3.png").stat()
    (data / "3.png").write_bytes((data / "3.png").read_bytes()[:-1] + b"x")
    os.utime(data / "3.png", ns=(former.st_atime_ns, former.st_mtime_ns + 1))
    assert (data / "3.png").stat().st_size == former.st_size
    scan_sources([Source("d", data)], catalog, workers=1)
    scan_sources([Source("d", data)], tmp_path / "uninterrupted", workers=1)
    assert shown(catalog) == shown(tmp_path / "uninterrupted")


def test_a_caption_that_cannot_be_read_any_more_is_told_though_its_picture_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, catalog = write_pictures(tmp_path / "data", 4), tmp_path / "catalog"
    interrupted(data, catalog, monkeypatch)
    (data / "3.txt").unlink()
    places.link(data / "3.txt", "3.txt")
    scan_sources([Source("d", data)], catalog, workers=1)
    scan_sources([Source("d", data)], tmp_path / "uninterrupted", workers=1)
    assert shown(catalog) == shown(tmp_path / "uninterrupted")


def test_findings_of_other_clips_of_a_video_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, catalog = write_pictures(tmp_path / "data", 1), tmp_path / "catalog"
    media.write(data / "film.mp4", media.numbered(36))
    interrupted(data, catalog, monkeypatch, cut="0.5s")
    for folder in (catalog, tmp_path / "uninterrupted"):
        scan_sources([Source("d", data, cut="0.75s")], folder, workers=1)
    assert shown(catalog) == shown(tmp_path / "uninterrupted")


def test_a_journal_outlives_its_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was known of a touched file from its row is measured when the row is gone."""
    data, catalog = write_pictures(tmp_path / "data", 4), tmp_path / "catalog"
    scan_sources([Source("d", data)], catalog, workers=1)
    os.utime(data / "3.png", ns=(1, 1))
    (data / "2.png").unlink()
    interrupted(data, catalog, monkeypatch)
    for file in catalog.iterdir():
        if file.name != journal.NAME:
            file.unlink()
    for folder in (catalog, tmp_path / "uninterrupted"):
        scan_sources([Source("d", data)], folder, workers=1)
    assert shown(catalog) == shown(tmp_path / "uninterrupted")


def test_each_scan_knows_whether_the_one_before_it_died(tmp_path: Path) -> None:
    """Also of one that died before it found anything, after one that a person had stopped."""
    with pytest.raises(Killed), journal.ScanJournal(tmp_path):
        raise Killed
    for died in (False, True, True):
        dying = journal.ScanJournal(tmp_path)
        assert dying.died == died
        dying._file.close()
        dying._reader.close()


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\xff\x00\n", b'{"format": 2, "measures": []}\nabc\n'])
@pytest.mark.quick_cases(2)
def test_a_journal_of_something_else_is_not_used(data: Path, tmp_path: Path, content: bytes) -> None:
    catalog = tmp_path / "catalog"
    catalog.mkdir()
    (catalog / journal.NAME).write_bytes(content)
    assert scan_sources([Source("d", data)], catalog, workers=1).new == FILES
    assert not (catalog / journal.NAME).exists()
