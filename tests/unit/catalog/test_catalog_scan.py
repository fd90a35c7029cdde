"""A scan leaves the catalog equal to the folders, and touches only what changed."""

from __future__ import annotations

import errno
import os
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import catalog_crash
import media_makers as media
import numpy as np
import places
import pytest
import small_disks
from killed_scans import write_pictures
from refused import refused

from reelworks.core import retry
from reelworks.core.errors import UserError
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import examine, journal, listing, scan
from reelworks.data.catalog.scan.scan import ScanProgress, ScanResult, scan_sources
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.media import probe
from reelworks.data.media.location import Location
from reelworks.data.run import lock
from reelworks.data.run.folder import RunFolder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    media.write_picture(folder / "a.png", 1)
    media.write_picture(folder / "sub" / "B.PNG", 2)
    media.write_video(folder / "sub" / "c.mp4", num_frames=3)
    (folder / "sub" / "c.txt").write_text("a film", encoding="utf-8")
    (folder / "sub" / "bad.mp4").write_bytes(b"")
    media.write_picture(folder / ".hidden.png")
    media.write_picture(folder / "sub" / ".hidden" / "d.png")
    (folder / "notes.md").write_text("no media", encoding="utf-8")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "catalog"


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of files probed so far."""
    names: list[str] = []
    real = probe.probe

    def spy(path: Path) -> probe.Probe:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(probe, "probe", spy)
    return names


def run(data: Path, target: Path, name: str = "d") -> ScanResult:
    return scan_sources([Source(name, data)], target, workers=2)


def counts(result: ScanResult) -> tuple[int, int, int, int]:
    assert result.found == result.new + result.changed + result.unchanged
    return result.new, result.changed, result.unchanged, result.removed


def paths(target: Path) -> list[str]:
    return sorted(Catalog.open(target).live().path.to_pylist())


@pytest.mark.parametrize(
    "texts", [("a.txt", "a.png.txt", "a.1.TXT", "é.caption"), ("b.txt", "texts/a.txt", "a1.caption")]
)
def test_texts_that_are_no_clips_captions_are_told(texts: tuple[str, ...], tmp_path: Path, target: Path) -> None:
    """Such as those of a folder of their own, or all of them in one file."""
    folder = tmp_path / "named"
    (folder / "texts").mkdir(parents=True)
    for name in ("a.png", "e\u0301.png"):
        media.write_picture(folder / name)
    for name in texts:
        (folder / name).write_text("words", encoding="utf-8")
    told = f"{folder}: files beside the clips: .txt (2), .caption (1); captions in .caption .txt are read of files that lie "
    notes = run(folder, target).notes
    assert [note for note in notes if "files beside" in note] == (
        [] if "a.txt" in texts else [f"{told}beside a clip and have its name"]
    )


def test_a_first_scan(data: Path, target: Path) -> None:
    result = run(data, target)
    assert counts(result) == (4, 0, 0, 0)
    assert result.bad_files == ((str(data / "sub/bad.mp4"), "zero bytes"),)
    assert (result.bad, result.version) == (1, 1)
    assert result.notes == (f"{data}: files beside the clips: .md (1)",)
    assert paths(target) == ["a.png", "sub/B.PNG", "sub/bad.mp4", "sub/c.mp4"]
    rows = {row["path"]: row for row in Catalog.open(target).live().to_table().to_pylist()}
    film, bad = rows["sub/c.mp4"], rows["sub/bad.mp4"]
    assert (film["kind"], film["num_frames"], film["caption"], film["error"]) == ("video", 3, "a film", None)
    assert film["root"] == str(data)
    assert film["mtime_ns"] == (data / "sub/c.mp4").stat().st_mtime_ns
    assert (bad["kind"], bad["num_frames"], bad["error"]) == ("video", 0, "zero bytes")


def test_unchanged_files_are_not_opened_and_nothing_is_written(
    data: Path, target: Path, probed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(data, target)
    assert sorted(probed) == ["B.PNG", "a.png", "bad.mp4", "c.mp4"]
    probed.clear()
    written = {file: file.stat().st_mtime_ns for file in target.iterdir() if file.name != ".lock"}
    monkeypatch.setattr("reelworks.core.digests.fingerprint", None)
    result = run(data, target)
    assert counts(result) == (0, 0, 4, 0)
    assert (result.bad, result.version) == (1, 1)
    assert probed == []
    assert written == {file: file.stat().st_mtime_ns for file in target.iterdir() if file.name != ".lock"}


def test_a_scan_that_finds_no_change_takes_less_than_the_first(tmp_path: Path, target: Path) -> None:
    """Less of the processor's time, which others do not take; also where captions are in files, which are read again."""
    folder, seconds = write_pictures(tmp_path / "many", 200), []
    for _ in range(2):
        began = time.process_time()
        run(folder, target)
        seconds.append(time.process_time() - began)
    assert seconds[1] < seconds[0]


@pytest.mark.parametrize("cut", ["", "0.1s"])
def test_a_touched_file_is_read_once_and_not_measured_again(
    cut: str, data: Path, target: Path, probed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is an archive. A film that is cut is measured."""
    with tarfile.open(data / "packed.tar", "w") as archive:
        archive.add(data / "a.png", "b.png")
    source = Source("d", data, cut=cut)
    found = scan_sources([source], target, workers=1).found
    probed.clear()
    for name in ("a.png", "packed.tar", "sub/c.mp4"):
        os.utime(data / name, ns=(1, 1))
    assert counts(scan_sources([source], target, workers=1)) == (0, 0, found, 0)
    assert probed == ["c.mp4"] * bool(cut)
    rows = Catalog.open(target).live().to_table().to_pylist()
    assert {row["mtime_ns"] for row in rows if row["error"] is None and row["path"] != "sub/B.PNG"} == {1}
    monkeypatch.setattr("reelworks.core.digests.fingerprint", None)
    again = scan_sources([source], target, workers=1)
    assert (counts(again), again.version) == ((0, 0, found, 0), 2)


def test_only_what_changed_is_looked_at(data: Path, target: Path, probed: list[str]) -> None:
    run(data, target)
    probed.clear()
    media.write_picture(data / "a.png", size=(9, 9))
    media.write_picture(data / "new.png")
    (data / "sub" / "B.PNG").unlink()
    (data / "sub" / "c.txt").write_text("another film", encoding="utf-8")
    assert counts(run(data, target)) == (1, 2, 1, 1)
    assert sorted(probed) == ["a.png", "new.png"]
    rows = {row["path"]: row for row in Catalog.open(target).live().to_table().to_pylist()}
    assert rows["a.png"]["width"] == 9
    assert (rows["sub/c.mp4"]["caption"], rows["sub/c.mp4"]["num_frames"]) == ("another film", 3)
    assert "sub/B.PNG" not in rows


def test_a_file_of_the_same_size_with_another_time_of_change_is_measured_again(data: Path, target: Path) -> None:
    """By its time alone: the size and the name are those of its row."""
    file = media.write_picture(data / "a.bmp", size=(8, 4))
    run(data, target)
    listed = file.stat()
    assert media.write_picture(file, size=(4, 8)).stat().st_size == listed.st_size
    os.utime(file, ns=(listed.st_atime_ns, listed.st_mtime_ns + 1))
    assert counts(run(data, target)) == (0, 1, 4, 0)
    rows = {row["path"]: row for row in Catalog.open(target).live().to_table().to_pylist()}
    assert (rows["a.bmp"]["width"], rows["a.bmp"]["height"]) == (4, 8)


def test_a_mended_file_becomes_good_and_a_broken_one_bad(data: Path, target: Path) -> None:
    run(data, target)
    media.write_video(data / "sub" / "bad.mp4", num_frames=2)
    (data / "a.png").write_bytes((data / "a.png").read_bytes()[:-30])
    result = run(data, target)
    assert counts(result) == (0, 2, 2, 0)
    assert [Path(path).name for path, _ in result.bad_files] == ["a.png"]


def test_other_datasets_stay(data: Path, target: Path, tmp_path: Path) -> None:
    media.write_picture(tmp_path / "other" / "x.png")
    scan_sources([Source("d", data), Source("o", tmp_path / "other")], target, workers=1)
    (tmp_path / "other" / "x.png").unlink()
    (data / "a.png").unlink()
    assert counts(run(data, target)) == (0, 0, 3, 1)
    assert "x.png" in paths(target)


def test_the_order_of_datasets_does_not_matter(data: Path, target: Path, tmp_path: Path) -> None:
    """Rows are ordered by their uids, so that two machines have equal catalogs, and plans, of the same files."""
    media.write_picture(tmp_path / "other" / "x.png")
    sources = [Source("d", data), Source("o", tmp_path / "other")]
    for catalog, order in ((target, sources), (tmp_path / "turned", sources[::-1])):
        scan_sources(order, catalog, workers=1)
        uids = Catalog.open(catalog).live().uid
        assert (np.diff(uids.astype(object)) > 0).all()
    assert Catalog.open(target).digest() == Catalog.open(tmp_path / "turned").digest()


def test_one_path_in_two_datasets_is_two_clips(data: Path, target: Path) -> None:
    result = scan_sources([Source("one", data), Source("two", data)], target, workers=1)
    assert result.new == 8
    assert len(set(Catalog.open(target).live().uid.tolist())) == 8


def test_a_moved_folder_keeps_identities(data: Path, target: Path, probed: list[str]) -> None:
    run(data, target)
    before = Catalog.open(target).live()
    probed.clear()
    data.rename(data.with_name("moved"))
    assert counts(run(data.with_name("moved"), target)) == (0, 4, 0, 0)
    after = Catalog.open(target).live()
    assert probed == []
    assert sorted(after.uid) == sorted(before.uid)
    assert all(after.file(i).exists() for i in range(len(after)))


def test_a_file_that_could_not_be_read_is_tried_again(data: Path, target: Path) -> None:
    target_of_link = data.parent / "later.png"
    places.link(data / "link.png", target_of_link)
    result = run(data, target)
    assert (str(data / "link.png"), "a link to what is not there") in result.bad_files
    assert counts(run(data, target)) == (0, 0, 5, 0)
    media.write_picture(target_of_link)
    result = run(data, target)
    assert counts(result) == (0, 1, 4, 0)
    assert result.bad == 1


def test_odd_entries_are_rows_not_stops(data: Path, target: Path) -> None:
    places.pipe(data / "pipe.mp4")
    Path(os.fsdecode(os.fsencode(data) + b"/caf\xe9.png")).write_bytes(b"x")
    places.link(data / "sub" / "again", data)
    (data / "a.txt").mkdir()
    bad = {Path(path).name: reason for path, reason in run(data, target).bad_files}
    assert bad["pipe.mp4"] == "not a regular file"
    assert bad["caf\\xe9.png"] == "file name is not UTF-8"
    assert bad["a.png"] == "cannot be read: its caption a.txt: not a regular file, but a folder"
    assert counts(run(data, target)) == (0, 0, 6, 0)


def test_an_archive_or_folder_whose_name_is_not_utf8_costs_its_own_clips_alone(data: Path, target: Path) -> None:
    """Their bytes are told by number, as those of a file."""
    run(data, target)
    good = set(paths(target))
    odd = Path(os.fsdecode(os.fsencode(data) + b"/caf\xe9"))
    odd.mkdir()
    for tar in (odd / "a.tar", odd.with_suffix(".tar")):
        with tarfile.open(tar, "w") as archive:
            archive.add(data / "a.png", "a.png")
    odd.with_suffix(".x.tar").write_bytes(b"no archive" * 100)
    run(data, target)
    rows = {row["path"]: row["error"] for row in Catalog.open(target).live().to_table().to_pylist()}
    assert {path: error for path, error in rows.items() if path not in good} == dict.fromkeys(
        ["caf\\xe9/a.tar/a.png", "caf\\xe9.tar/a.png", "caf\\xe9.x.tar"], "file name is not UTF-8"
    )


@pytest.mark.parametrize("within", ["", "/sub", "/list.csv"])
def test_a_dataset_whose_path_is_not_utf8_is_refused_before_its_files_are_examined(within: str, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    with pytest.raises(UserError, match="not UTF-8") as caught:
        Source.from_path(f"{folder}{within}")
    assert (caught.value.code, "xe9" in str(caught.value)) == ("not-utf-8", True)
    str(caught.value).encode()


def test_a_decoder_that_never_returns_costs_its_file(
    data: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next scan examines it again."""
    real, pipe = probe.probe, tmp_path / "pipe"
    places.pipe(pipe)
    with monkeypatch.context() as patched:
        patched.setattr(examine, "_SECONDS", 1.0)
        patched.setattr(probe, "probe", lambda path: real(path) if path.name != "a.png" else pipe.read_bytes())
        result = run(data, target)
    stopped = (str(data / "a.png"), "it took more than 1 s and was stopped")
    assert stopped in result.bad_files
    assert counts(result) == (4, 0, 0, 0)
    again = run(data, target)
    assert len(again.bad_files) == len(result.bad_files) - 1
    assert counts(again) == (0, 1, 3, 0)


@pytest.mark.slow
def test_in_a_process_it_is_ended(data: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a scan of many files, also where nothing of Python could stop it."""
    with monkeypatch.context() as patched:
        patched.setattr(scan, "PROCESSES_FROM", 4)
        patched.setattr(scan, "examine", catalog_crash.examine_unless_endless)
        patched.setattr(examine, "_SECONDS", 1.0)
        result = run(data, target)
    stopped = (str(data / "a.png"), "it took more than 1 s and was stopped")
    assert stopped in result.bad_files
    assert len(result.bad_files) == 2
    assert counts(run(data, target)) == (0, 1, 3, 0)


@pytest.mark.slow
def test_scans_after_a_crash_name_the_file_and_find_all_others(
    data: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.mkdir()
    (target / journal.NAME).touch()  # as one leaves it that dies before it writes
    monkeypatch.setattr(scan, "examine", catalog_crash.examine_unless_deadly)
    for expected in ((4, 0, 0, 0), (0, 0, 4, 0)):  # and is known from then on
        result = run(data, target)
        assert counts(result) == expected
        assert (str(data / "a.png"), "the decoder crashed on it") in result.bad_files
        assert len(result.bad_files) == 2
    with pytest.raises(AssertionError, match="the scan itself would die"):
        run(data, target.with_name("another"))


def test_a_large_file_has_more_time_and_one_beside_others_in_a_storage_that_of_its_silence() -> None:
    film = examine.FileRequest(Path("x.mp4"), 0, True, "", size_bytes=10**9)
    far = film._replace(file=Location("s3://bucket/x.mp4", "x.mp4"))
    assert examine.most_seconds([]) == 120.0
    assert examine.most_seconds([[film]]) == 4120.0
    assert examine.most_seconds([[film], [film._replace(open=False)]]) == 4120.0
    assert examine.most_seconds([[film, film._replace(cut="scenes")]]) == 44120.0
    assert [examine.most_seconds(files) for files in ([[far]], [[film], [far]])] == [5200.0, 9200.0]


@pytest.mark.slow
def test_processes_find_what_threads_find(
    data: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probed: list[str]
) -> None:
    run(data, target)
    probed.clear()
    monkeypatch.setattr(scan, "PROCESSES_FROM", 4)
    result = run(data, tmp_path / "second")
    assert probed == [], "the files were probed elsewhere"
    assert counts(result) == (4, 0, 0, 0)
    assert Catalog.open(tmp_path / "second").table.equals(Catalog.open(target).table)


def test_progress_ends_at_the_total(data: Path, target: Path) -> None:
    seen: list[ScanProgress] = []
    scan_sources([Source("d", data)], target, workers=1, on_progress=seen.append)
    assert (seen[-1].done, seen[-1].total) == (4, 4)
    assert [progress.done for progress in seen] == sorted({progress.done for progress in seen})


def test_many_rows_pass_through_several_batches(tmp_path: Path, target: Path, monkeypatch) -> None:
    monkeypatch.setattr("reelworks.data.catalog.scan.update._ROWS_PER_BATCH", 3)
    for i in range(10):
        media.write_picture(tmp_path / f"{i}.png", i)
    run(tmp_path, target)
    for i in range(10):
        (tmp_path / f"{i}.txt").write_text(str(i), encoding="utf-8")
    assert counts(run(tmp_path, target)) == (0, 10, 0, 0)
    rows = Catalog.open(target).live().to_table().to_pylist()
    assert all(row["path"] == f"{row['caption']}.png" and row["width"] == 4 for row in rows)


def test_sources_that_cannot_be_scanned(data: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "gifs").mkdir()
    for name in ("a.psd", "b.PSD", "c.zip", "a.txt", "d.json"):
        (tmp_path / "gifs" / name).write_text("", encoding="utf-8")
    cases = {
        tmp_path / "nowhere": "no such folder",
        data / "a.png": "this is a file, not a folder",
        tmp_path / "empty": "it contains: nothing",
        tmp_path / "gifs": r"it contains: \.psd \(2\), \.json \(1\), \.zip \(1\)(?s:.*)\.mp4",
    }
    for folder, message in cases.items():
        with pytest.raises(UserError, match=message) as caught:
            run(folder, target)
        assert str(folder) in str(caught.value)
    assert not target.exists()


def test_a_vanished_folder_retires_nothing(data: Path, target: Path) -> None:
    run(data, target)
    data.rename(data.with_name("away"))
    with pytest.raises(UserError, match="no such folder"):
        run(data, target)
    assert len(paths(target)) == 4


def test_a_folder_that_cannot_be_listed_is_an_error(data: Path, target: Path, monkeypatch) -> None:
    real = os.scandir

    def refuse(path: Path):
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"sub cannot be read \(Permission denied\)"):
        run(data, target)


def test_a_link_to_a_folder_that_is_away_is_an_error(data: Path, target: Path, tmp_path: Path) -> None:
    """If there were clips behind it; it is none where something else has its name or begins with it, or it is deleted."""
    (data / "sub").rename(tmp_path / "mounted")
    places.link(data / "sub", tmp_path / "mounted")
    places.link(data / "su", tmp_path / "never there")
    for before in (False, True):
        assert counts(run(data, target)) == ((0, 0, 5, 0) if before else (5, 0, 0, 0))
    (data / "su").unlink()
    assert counts(run(data, target)) == (0, 0, 4, 1)
    (tmp_path / "mounted").rename(tmp_path / "away")
    with refused("folder-unreadable", "dataset 'd'", says="sub is a link to what is not there"):
        run(data, target)
    assert len(paths(target)) == 4
    assert counts(run(data, tmp_path / "new"))[0] == 2
    (data / "sub").unlink()
    assert counts(run(data, target)) == (0, 0, 1, 3)


class _Stale:
    """An entry of a folder on a mount of which look-ups fail, so many times."""

    def __init__(self, entry: os.DirEntry[str], times: int, code: int) -> None:
        self.name, self.path, self.is_symlink = entry.name, entry.path, entry.is_symlink
        self._entry, self._times, self._code = entry, times, code

    def _look(self, what: str) -> Any:
        if self._times:
            self._times -= 1
            raise OSError(self._code, os.strerror(self._code))
        return getattr(self._entry, what)()

    def stat(self) -> os.stat_result:
        return self._look("stat")

    def is_dir(self) -> bool:
        return self._look("is_dir")


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.ENOTCONN])
def test_a_name_that_cannot_be_looked_up_keeps_its_clips(
    data: Path, target: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again; if it stays so, a clip's row stays, and what may be a folder is refused, which no archive is."""
    with tarfile.open(data / "b.tar", "w") as archive:
        archive.add(data / "a.png", "in it.png")
    assert counts(run(data, target)) == (5, 0, 0, 0)
    before, inside = Catalog.open(target).live().to_table(), listing._inside
    times = {"a.png": 3, "b.tar": 99, "sub": 3}

    def stale(folder: Path) -> tuple[os.stat_result, list[Any]]:
        status, entries = inside(folder)
        return status, [_Stale(entry, times.get(entry.name, 0), code) for entry in entries]

    monkeypatch.setattr(listing, "_inside", stale)
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0.0,) * 3)
    assert counts(run(data, target)) == (0, 0, 5, 0)
    times["a.png"] = 99
    result = run(data, target)
    assert (counts(result), len(result.bad_files)) == ((0, 0, 5, 0), 1)
    assert any(f"a.png: cannot be read now: {os.strerror(code)}" in note for note in result.notes)
    times["sub"] = 99
    with refused("folder-unreadable", says=os.strerror(code)):
        run(data, target)
    assert Catalog.open(target).live().to_table() == before


def test_two_sources_of_one_name(data: Path, target: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two datasets have the same name"):
        scan_sources([Source("d", data), Source("d", tmp_path)], target, workers=1)


def test_two_files_of_one_uid(data: Path, target: Path, monkeypatch) -> None:
    monkeypatch.setattr("reelworks.core.hash_rng.text_words", lambda texts: np.zeros(len(texts), np.uint64))
    with pytest.raises(UserError, match="have the same uid"):
        run(data, target)


def test_a_run_folder_inside_the_dataset_is_no_footage(data: Path, target: Path) -> None:
    run_folder = RunFolder(data / "sub" / "run")
    preview = run_folder.samples_folder / "step-000000002"
    media.write_picture(preview / "00.png", 3)
    before = run(data, target)
    assert "sub/run/samples/step-000000002/00.png" in paths(target)
    run_folder.create()
    after = run(data, target)
    assert (after.found, after.removed) == (before.found - 1, 1)
    assert paths(target) == ["a.png", "sub/B.PNG", "sub/bad.mp4", "sub/c.mp4"]


@pytest.mark.parametrize("text", ["{}", "[1]", "{", '{"format": "mp4"}'])
def test_a_run_json_of_somebody_else_hides_nothing(data: Path, target: Path, text: str) -> None:
    (data / "sub" / "run.json").write_text(text, encoding="utf-8")
    assert run(data, target).found == 4


def test_a_dataset_may_be_a_run_folder_or_lie_in_one(data: Path, target: Path) -> None:
    RunFolder(data).create()
    assert run(data, target).found == 4
    assert run(data / "sub", target, "below").found == 3


@pytest.mark.skipif(not small_disks.may_mount(), reason="only root may mount a small disk")
def test_a_catalog_that_may_only_be_read_is_as_good_while_nothing_has_changed(tmp_path: Path) -> None:
    data = small_disks.write_data(tmp_path)
    (data / "0.txt").write_text("a cat", encoding="utf-8")
    with small_disks.disk(tmp_path / "disk") as disk:
        first = scan_sources([Source("d", data)], disk / "catalog", workers=1)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        again = scan_sources([Source("d", data)], disk / "catalog", workers=1)
        assert (again.unchanged, again.version) == (first.new, first.version)
        (data / "0.txt").write_text("a dog", encoding="utf-8")
        with refused("file-unwritable", "catalog", says="Read-only"):
            scan_sources([Source("d", data)], disk / "catalog", workers=1)
        with refused("file-unwritable", "catalog", says="Read-only"):
            scan_sources([Source("d", data)], disk / "none", workers=1)


def test_without_the_lock_nothing_is_written_though_the_folder_could_be(
    data: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the lock's file is another user's, in a folder that a group writes into."""
    run(data, target)
    before = Catalog.open(target).version

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(lock, "_take", refuse)
    assert run(data, target).version == before
    media.write_picture(data / "more.png")
    with refused("file-unwritable", "catalog", says="Permission denied"):
        run(data, target)
    assert Catalog.open(target).version == before
