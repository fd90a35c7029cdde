from __future__ import annotations

import gzip
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import durable
import numpy as np
import places
import pytest

from reelworks.core import files, storage, system, user_files


def test_a_file_is_replaced_whole_and_nothing_is_left_beside(tmp_path: Path) -> None:
    target = tmp_path / "value.json"
    files.write_json(target, {"n": np.int64(3), "p": Path("a/b"), "x": np.float32(0.5)})
    files.write_json(target, {"n": 4})
    assert json.loads(target.read_text(encoding="utf-8")) == {"n": 4}
    assert list(tmp_path.iterdir()) == [target]


def test_a_write_that_fails_leaves_the_former_file(tmp_path: Path) -> None:
    target = tmp_path / "value.json"
    files.write_json(target, [1])
    with pytest.raises(ValueError, match="Out of range"):
        files.write_json(target, float("nan"))
    target.chmod(0o400)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        files.write_bytes(tmp_path / "folder", b"x")  # cannot be renamed onto a folder
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "value.json"]
    assert json.loads(target.read_text(encoding="utf-8")) == [1]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit])
def test_a_write_that_is_broken_off_leaves_nothing_beside(tmp_path: Path, error: type[BaseException]) -> None:
    """By Ctrl-C too."""

    def write() -> None:
        with files.replacing(tmp_path / "clip.mp4") as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(error):
        write()
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    pipe, other = tmp_path / "pipe", tmp_path / "other"
    places.pipe(pipe)
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit(pipe.read_bytes)
        files.write_for("--output", pipe, b"written")
        assert read.result(10) == b"written"
    other.write_bytes(b"x")
    with pytest.raises(OSError, match="a device or a pipe"):
        storage.rename(other, pipe)
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == [other, pipe]


def test_what_json_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON: set"):
        files.to_json({1, 2})


def test_a_line_is_not_appended_to_a_copy_that_shares_the_file(tmp_path: Path) -> None:
    """As a snapshot of hard links does."""
    log, snapshot = tmp_path / "events.jsonl", tmp_path / "snapshot.jsonl"
    files.append_json_line(log, {"n": 1})
    os.link(log, snapshot)
    files.append_json_line(log, {"n": 2})
    assert [event["n"] for event in files.read_json_lines(log)] == [1, 2]
    assert [event["n"] for event in files.read_json_lines(snapshot)] == [1]


def test_lines_survive_a_torn_one(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    files.append_json_line(log, {"n": 1})
    with log.open("ab") as f:
        f.write('{"n": 2, "text": "häl'.encode()[:-2])  # a crash in the middle of a letter
    files.append_json_line(log, {"n": 3})
    files.append_json_line(log, {"n": 4})
    assert [line["n"] for line in files.read_json_lines(log)] == [1, 3, 4]


def test_lines_that_are_no_objects_are_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    assert list(files.read_json_lines(log)) == []
    log.write_text('3\n[1]\n\n{"n": 1}\n', encoding="utf-8")
    assert list(files.read_json_lines(log)) == [{"n": 1}]


@pytest.mark.skipif(system.WINDOWS, reason="Windows keeps a journal of what folders hold")
def test_new_folders_are_durable_with_all_above_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = durable.Synced()
    monkeypatch.setattr(os, "fsync", synced.sync)
    storage.mkdirs(tmp_path / "run" / "checkpoints" / "pins")
    assert all(synced.has_name(tmp_path / part) for part in ("run", "run/checkpoints", "run/checkpoints/pins"))


STATES_NO_SIZE = Path("/proc/self/status")


@pytest.mark.skipif(not STATES_NO_SIZE.exists(), reason="a file that states no size is one of Linux")
def test_a_file_that_states_no_size_is_read_whole_or_refused() -> None:
    whole = user_files.read_bytes(STATES_NO_SIZE, user_files.TABLE)
    assert whole
    assert STATES_NO_SIZE.stat().st_size == 0
    with pytest.raises(OSError, match="at most"):
        user_files.read_bytes(STATES_NO_SIZE, len(whole) // 2)


def test_a_file_that_a_library_opens_has_at_most_so_many_bytes(tmp_path: Path) -> None:
    path = tmp_path / "clips.parquet"
    path.write_bytes(bytes(10))
    user_files.require(path, 10)
    user_files.require(path)
    with pytest.raises(OSError, match=r"10 bytes or more, and at most 9 are read"):
        user_files.require(path, 9)


def test_what_is_unpacked_is_read_up_to_its_limit_however_small_the_packed_file_is() -> None:
    most = 3 << 20
    with gzip.open(io.BytesIO(gzip.compress(bytes(most)))) as file:
        assert user_files.read_open(file, "clips.csv.gz", most) == bytes(most)
    with gzip.open(io.BytesIO(gzip.compress(bytes(4 * most)))) as file:
        with pytest.raises(OSError, match=r"at most 3,145,728 are read .*clips\.csv\.gz"):
            user_files.read_open(file, "clips.csv.gz", most)
        assert file.tell() < 2 * most


def test_a_user_without_a_home_has_folders_of_its_own_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of no name that others know beforehand: what lies in them is trusted."""
    places.leave_without_home(monkeypatch, tmp_path)
    folders = [user_files.state_folder(), user_files.cache_folder(), user_files.cache_folder()]
    (home,) = tmp_path.iterdir()
    assert home.stat().st_mode & 0o077 == 0
    assert all(folder.is_relative_to(home) for folder in folders)
    assert caplog.text.count("set HOME") == 1


def test_a_guard_ends_with_its_block_also_after_an_error(tmp_path: Path) -> None:
    """The one around it holds again, and none behind both."""
    asked = list[str]()

    def fail(call: str, path: Path) -> None:
        raise OSError(call)

    with storage.guarded(lambda call, path: asked.append(call)):
        with pytest.raises(OSError, match="mkdir"), storage.guarded(fail):
            storage.mkdirs(tmp_path / "a")
        assert not asked
        storage.mkdirs(tmp_path / "a")
    storage.mkdirs(tmp_path / "b")
    assert asked.count("mkdir") == 1


@pytest.mark.skipif(system.WINDOWS, reason="Windows has no pipes in folders")
def test_a_file_that_another_kind_replaces_while_it_is_opened_is_refused_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, open_file, descriptors = tmp_path / "a.csv", os.open, list[int]()
    target.touch()

    def replace_and_open(path: Path, flags: int) -> int:
        target.unlink()
        os.mkfifo(target)
        descriptors.append(open_file(path, flags))
        return descriptors[-1]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", replace_and_open)
        with pytest.raises(OSError, match="not a regular file"):
            user_files.opened(target)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])
