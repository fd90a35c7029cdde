"""A disk that fails is told in words, names what to change, and ends no training by its curves."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import small_disks
from refused import refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from reelworks.commands import main
from reelworks.core import files, storage, system
from reelworks.core.errors import UserError
from reelworks.core.file_cache import FileCache
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.run import lock
from reelworks.training.observers import trackers
from reelworks.training.observers.trackers import TensorBoard


class Disk:
    """Fails writes while it is full, behind the bytes that are left."""

    is_full = True
    left = 0

    def __call__(self, call: str, path: Path) -> int | None:
        if self.is_full and not self.left and call in ("write", "open", "mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken, self.left = (self.left, 0) if call == "write" else (0, self.left)
        return taken or None


def test_curves_wait_for_a_full_disk(tmp_path: Path) -> None:
    with storage.guarded(disk := Disk()):
        board = TensorBoard(tmp_path / "t", 0)
        board.log(1, {"loss": 1.0})
        board._write()
        disk.is_full = False
        board.log(2, {"loss": 2.0})
        board._write()
        disk.is_full, disk.left = True, 7  # of a record, half of which would end the curves
        board.log(3, {"loss": 3.0})
        board._write()
        disk.is_full = False
        board.close(failed=False)
    curves = EventAccumulator(str(tmp_path / "t"))
    curves.Reload()
    assert [(value.step, value.value) for value in curves.Scalars("loss")] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_so_many_records_wait_for_a_disk_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "_MOST_WAITING", 4)
    with storage.guarded(Disk()):
        board = TensorBoard(tmp_path / "t", 0)
        for step in range(9):
            board.log(step, {"loss": 1.0})
            board._write()
    assert len(board._waiting) == 4


def test_a_full_disk_is_told_once_and_tried_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that hangs before it fails would slow down each step."""
    now, tried, disk = [1e3], set[float](), Disk()

    def full(call: str, path: Path) -> None:
        tried.add(now[0])
        disk(call, path)

    # Meanwhile the clock is set back.
    clocks = SimpleNamespace(monotonic=lambda: now[0], time=lambda: 3e9 - 1e6 * now[0])
    monkeypatch.setattr(trackers, "time", clocks)
    with storage.guarded(full):
        board = TensorBoard(tmp_path / "t", 0)
        for step in range(25):
            board.log(step, {"loss": 1.0})
            now[0] += 1
    assert sorted(tried) == [1e3, 1e3 + 10, 1e3 + 20]
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("clocks", [(0, 1, 2), (0, 0, 0), (5, 0, 3), (2e8, 1e8, 0)], ids=str)
def test_curves_of_starts_that_are_killed_have_each_step_once(
    clocks: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them closes its file: the first begins, the second begins again, and the third resumes from step 2.

    Machines that a run goes on on have clocks of their own.
    """
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "events.out.tfevents.of-somebody-else").touch()
    for clock, (first, steps) in zip(clocks, ((0, (0, 1)), (0, (0, 1, 2, 3, 4)), (2, (3, 4, 5))), strict=True):
        monkeypatch.setattr(trackers.time, "time", lambda clock=clock: 1.7e9 + clock)
        board = TensorBoard(tmp_path / "t", first)
        for step in steps:
            board.log(step, {"loss": float(step)})
    curves = EventAccumulator(str(tmp_path / "t"))
    curves.Reload()
    assert [value.step for value in curves.Scalars("loss")] == [0, 1, 2, 3, 4, 5]


def test_a_scan_onto_a_full_disk_names_the_catalog(tmp_path: Path) -> None:
    data = small_disks.write_data(tmp_path)
    with storage.guarded(Disk()), refused("file-unwritable", "catalog", says="No space left.*free space"):
        scan_sources([Source("d", data)], tmp_path / "catalog", workers=1)


@pytest.mark.parametrize("number", sorted(files.OF_DISKS))
def test_what_a_disk_says_is_told_in_words_with_the_file(number: int, tmp_path: Path) -> None:
    def refuse(call: str, _path: Path) -> None:
        if call == "write":
            raise OSError(number, os.strerror(number))

    with storage.guarded(refuse), pytest.raises(OSError) as caught:
        storage.append(tmp_path / "a", b"a")
    told = main.as_user_error(caught.value)
    assert isinstance(told, UserError)
    assert told.value == str(tmp_path / "a")
    assert os.strerror(number) in str(told)
    assert main.as_user_error(ValueError()) is None
    nameless = main.as_user_error(OSError(number, os.strerror(number)))
    assert isinstance(nameless, UserError)
    assert (nameless.value, nameless.field) == (None, "disk")
    assert os.strerror(number) in str(nameless)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENAMETOOLONG])
def test_a_path_that_cannot_be_opened_is_told_in_words(number: int) -> None:
    """Of a folder that may not be searched, Python raises for any question, even whether a file is there."""
    told = main.as_user_error(OSError(number, os.strerror(number), "secret/a"))
    assert isinstance(told, UserError)
    assert (told.code, told.value) == ("path-unusable", "secret/a")
    assert os.strerror(number) in str(told)
    assert main.as_user_error(OSError(number, os.strerror(number))) is None


def test_a_full_cache_is_not_the_fault_of_a_remote_file(tmp_path: Path) -> None:
    def fetch(_target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        refused("file-unwritable", "REELWORKS_CACHE", says="No space left"),
        FileCache(tmp_path, 1e9).held("name", fetch),
    ):
        pass


@pytest.mark.skipif(not small_disks.may_mount(), reason="only root may mount a small disk")
def test_no_inodes_left_is_told_as_that(tmp_path: Path) -> None:
    with (
        small_disks.disk(tmp_path / "disk", inodes=1) as place,
        refused("file-unwritable", "--out", says="no inodes left"),
    ):
        files.write_for("--out", place / "a.json", b"{}")


@pytest.mark.parametrize("left", [None, 5])
def test_inodes_are_blamed_only_if_a_disk_counts_them_and_has_none_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int | None
) -> None:
    monkeypatch.setattr(system, "inodes_left", lambda _: left)
    error = files.unwritable("--out", tmp_path / "a.json", OSError(errno.ENOSPC, "No space left on device"))
    assert error.problem == "this cannot be written (No space left on device)"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free space"), (errno.EMFILE, "let more files be open"), (errno.EACCES, "permissions")],
)
def test_a_folder_that_cannot_be_locked_names_what_the_system_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock.os, "open", refuse)
    with refused("file-unwritable", "output", says=remedy), lock.hold(tmp_path / "run" / "lock"):
        pass


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a.mp4"), "ulimit -n"),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "ulimit -n"),
    ],
)
def test_a_limit_of_the_system_is_told_with_the_way_to_raise_it(error: Exception, limit: str) -> None:
    told = main.as_user_error(error)
    assert isinstance(told, UserError)
    assert told.code == "limit-reached"
    assert str(error) in told.problem
    assert limit in told.remedy


def _raises_again(*_: object, **__: object) -> None:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@pytest.mark.parametrize("begins", [subprocess.run, multiprocessing.get_context("spawn").Process])
def test_a_call_that_would_have_to_wait_is_a_limit_only_if_it_begins_a_process(
    begins: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that another has, and a pipe that is full, have the same number."""
    monkeypatch.setattr(subprocess, "_fork_exec", _raises_again)
    monkeypatch.setattr("multiprocessing.util.spawnv_passfds", _raises_again)
    with pytest.raises(BlockingIOError) as of_process:
        begins(["true"], close_fds=True) if begins is subprocess.run else begins(target=print).start()
    told = main.as_user_error(of_process.value)
    assert told is not None
    assert told.code == "limit-reached"
    assert "ulimit -u" in told.remedy
    with pytest.raises(BlockingIOError) as of_a_lock:
        _raises_again()
    assert main.as_user_error(of_a_lock.value) is None
