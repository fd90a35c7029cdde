"""One writer a folder: by the kernel's lock, and by a heartbeat where the file system has no locks."""

from __future__ import annotations

import errno
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from refused import refused

from reelworks.core import system
from reelworks.core.errors import UserError
from reelworks.data.run import heartbeat, lock
from reelworks.data.run.heartbeat import LockOwner
from reelworks.data.run.process import Process

# Holds, then answers each line it is given with what it knows of its lock.
_HOLD = """
import sys
from pathlib import Path
from reelworks.core import system
from reelworks.data.run import heartbeat, lock
if code := int(sys.argv[2]):
    def flock(*_):
        raise OSError(code, "no locks")
    system._lock = flock
    heartbeat.BEAT_SECONDS, heartbeat.LOST_SECONDS, heartbeat._SETTLE_SECONDS = 0.1, 0.6, 0.1
with lock.hold(Path(sys.argv[1])) as held:
    print("held", flush=True)
    for _ in sys.stdin:
        try:
            held.check()
            print("ours", flush=True)
        except lock.LockLost:
            print("lost", flush=True)
"""
# Holds; a fork that leaves the block, and one that lives on, whose id is printed.
_FORK = """
import os, sys, time
from pathlib import Path
from reelworks.data.run import lock
with lock.hold(Path(sys.argv[1])) as held:
    if os.fork() == 0:
        try:
            held.check()
        except lock.LockLost:
            sys.exit(7)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    if (fork := os.fork()) == 0:
        time.sleep(60)
    print(fork, flush=True)
    sys.stdin.read()
"""
Holder = subprocess.Popen[str]


@contextmanager
def holder(path: Path, code: int = 0) -> Iterator[Holder]:
    """Another process that holds a lock; with an error number, one that flock fails with."""
    command = [sys.executable, "-c", _HOLD, str(path), str(code)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def ask(process: Holder) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks, and less patience."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(system, "_lock", flock)
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "LOST_SECONDS", 0.6)
    monkeypatch.setattr(heartbeat, "_SETTLE_SECONDS", 0.1)


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "run" / ".lock"  # the folder is made
    with lock.hold(path):
        with pytest.raises(UserError, match=f"another training .*process {os.getpid()}") as caught:
            lock.hold(path).__enter__()
        assert (caught.value.field, caught.value.value) == ("output", str(path.parent))
    with lock.hold(path):
        pass


def test_a_full_disk_keeps_nobody_from_the_lock(tmp_path: Path) -> None:
    """What makes room there holds it too; who is refused is not told by whom then."""
    path = tmp_path / ".lock"
    resource = pytest.importorskip("resource", reason="a limit of the size of files")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with lock.hold(path) as held:
            held.check()
            with refused("run-locked", "output"):
                lock.hold(path).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_who_asks_names_the_work_and_the_field(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    busy = {"doing": "scan", "field": "catalog", "remedy": "wait"}
    with lock.hold(path, **busy), refused("run-locked", "catalog") as caught:
        lock.hold(path, **busy).__enter__()
    assert (caught.value.field, caught.value.remedy) == ("catalog", "wait")


def test_a_second_process_is_refused_and_told_who_holds_it_since_when(tmp_path: Path) -> None:
    path, year = tmp_path / ".lock", time.strftime("%Y-")
    with holder(path) as first:
        known = f"process {first.pid} on {socket.gethostname()}, since {year}"
        with pytest.raises(UserError, match=known):
            lock.hold(path).__enter__()
        assert ask(first) == "ours"


def test_a_killed_holder_leaves_the_lock_to_the_next_at_once(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with holder(path) as first:
        first.kill()
    with lock.hold(path) as held:
        held.check()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_forks_have_no_part_in_a_lock(tmp_path: Path) -> None:
    """One that ends before its parent leaves the lock, and who holds it; one that ends later does not keep it."""
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", _FORK, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "7\n"
        fork = psutil.Process(int(process.stdout.readline()))
        try:
            owner = lock.holder(path)
            assert owner is not None
            assert owner.process.pid == process.pid
            process.kill()
            process.wait()
            with lock.hold(path) as held:
                held.check()
            assert fork.is_running()
        finally:
            fork.kill()
            process.kill()


def test_what_a_killed_holder_has_left_in_the_file_hides_nobody(tmp_path: Path) -> None:
    """Its name may be longer than that of the next one, who is asked to end by what the file says."""
    path = tmp_path / ".lock"
    path.write_text(LockOwner.here().to_json() + " and the end of a longer one", encoding="utf-8")
    known = f"process {os.getpid()} on {socket.gethostname()}"
    with lock.hold(path), refused("run-locked", "output", says=known):
        lock.hold(path).__enter__()


def test_a_paused_holder_keeps_the_kernels_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with holder(path) as first:
        psutil.Process(first.pid).suspend()
        with refused("run-locked", "output", says="another training"):
            lock.hold(path).__enter__()
        psutil.Process(first.pid).resume()
        assert ask(first) == "ours"


@pytest.mark.skipif(system.WINDOWS, reason="Windows removes no open file")
def test_a_lock_whose_file_was_replaced_is_lost(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with lock.hold(path) as held:
        path.unlink()
        with refused("lock-lost", "output", says="its lock file was removed"):
            held.check()
        path.touch()
        with refused("lock-lost", "output", says="its lock file was removed"):
            held.check()
        with (
            holder(path) as other,
            refused("lock-lost", "output", says=rf"training \(process {other.pid}.* taken over"),
        ):
            held.check()


@pytest.mark.parametrize("locks", [True, False])
def test_a_folder_that_is_removed_is_not_said_to_be_another_ones(
    tmp_path: Path, request: pytest.FixtureRequest, locks: bool
) -> None:
    """There is no other process, which a remedy could name, and nothing that was published is intact."""
    if not locks:
        request.getfixturevalue("no_locks")
    with lock.hold(tmp_path / "run" / ".lock") as held:
        held.check()
        (tmp_path / "run").rename(tmp_path / "away")
        with refused("lock-lost", "output", says="this folder is not there any more") as caught:
            held.check()
    assert "other process" not in str(caught.value)


def test_an_unknown_holder_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with lock.hold(path):
        path.write_text("[]", encoding="utf-8")
        with refused("run-locked", "output"):
            lock.hold(path).__enter__()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with refused("file-unwritable", "catalog") as caught:
        lock.hold(tmp_path / "file" / ".lock", field="catalog").__enter__()
    assert caught.value.field == "catalog"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_living_holder_is_seen_and_named(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / ".lock"
    monkeypatch.setattr(heartbeat, "LOST_SECONDS", 10.0)
    caplog.set_level(logging.INFO, logger="reelworks")
    with holder(path, code) as first:
        began = time.monotonic()
        with pytest.raises(UserError, match=f"process {first.pid} on "):
            lock.hold(path).__enter__()
        assert time.monotonic() - began < heartbeat.LOST_SECONDS
        assert f"process {first.pid}" in caplog.messages[0]
        assert ask(first) == "ours"


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_killed_holder_is_followed_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with holder(path, errno.ENOLCK) as first:
        first.kill()
    began = time.monotonic()
    with lock.hold(path) as held:
        assert time.monotonic() - began >= heartbeat.LOST_SECONDS
        held.check()
    began = time.monotonic()
    with lock.hold(path):  # one that was let go is free at once
        assert time.monotonic() - began < heartbeat.LOST_SECONDS / 2


@pytest.mark.skipif(system.WINDOWS, reason="Windows replaces no open file, so that a paused holder keeps it")
@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_paused_holder_loses_its_lock_and_knows_before_it_publishes(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with holder(path, errno.ENOLCK) as first:
        psutil.Process(first.pid).suspend()
        with lock.hold(path) as held:
            psutil.Process(first.pid).resume()
            assert ask(first) == "lost"
            time.sleep(3 * heartbeat.BEAT_SECONDS)  # nor does it take the file back
            held.check()
            assert ask(first) == "lost"
            assert first.stdin is not None
            first.stdin.close()
            assert first.wait(120) == 0
            held.check()  # its end leaves the file of the other alone


@pytest.mark.usefixtures("no_locks")
def test_a_short_pause_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with holder(path, errno.ENOLCK) as first:
        psutil.Process(first.pid).suspend()
        time.sleep(3 * heartbeat.BEAT_SECONDS)
        psutil.Process(first.pid).resume()
        assert ask(first) == "ours"


@pytest.mark.usefixtures("no_locks")
def test_of_several_that_wait_one_takes_over(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    (tmp_path / ".lock.heartbeat").write_text(LockOwner(1, "gone", 0.0, "t").to_json(beats=3), encoding="utf-8")
    taken, refused = [], []

    def take() -> None:
        try:
            taken.append(stack.enter_context(lock.hold(path)))
        except UserError:
            refused.append(1)

    with ExitStack() as stack:
        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(taken), len(refused)) == (1, 3)
        taken[0].check()
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_without_locks_a_holder_counts_for_as_long_as_it_renewed_its_file_lately(tmp_path: Path) -> None:
    beats, owner = tmp_path / ".lock.heartbeat", LockOwner(Process.here(), "elsewhere", 0.0, "t")
    beats.write_text(owner.to_json(beats=3), encoding="utf-8")
    assert lock.holder(tmp_path / ".lock") == owner
    os.utime(beats, (0, 0))
    assert lock.holder(tmp_path / ".lock") is None


def test_who_is_replaced_as_it_takes_over_does_not_hold_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that find a lock abandoned at once, the last one to replace its file has it."""
    path, other = tmp_path / "heartbeat", LockOwner.here()
    path.write_text(LockOwner(Process.here(), "gone", 0.0, "t").to_json(beats=3), encoding="utf-8")
    monkeypatch.setattr(heartbeat, "LOST_SECONDS", 0.0)
    monkeypatch.setattr(heartbeat.time, "sleep", lambda _: path.write_text(other.to_json(beats=0), encoding="utf-8"))
    with pytest.raises(heartbeat.LockedError) as told:
        heartbeat.beating(path, LockOwner.here()).__enter__()
    assert told.value.holder == other
    assert [*tmp_path.iterdir()] == [path]


def test_an_error_that_says_nothing_about_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(system, "_lock", flock)
    with refused("file-unwritable", "output", says="Input/output error"):
        lock.hold(tmp_path / ".lock").__enter__()
    assert not (tmp_path / ".lock.heartbeat").exists()
