"""An error at any storage call of a save costs that save and nothing else, and says what it was."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import one_save
import pytest
import storage_calls as crash
from checkpoint_helpers import assert_equal, save, state
from storage_calls import Call

from reelworks.core import storage
from reelworks.data.checkpoint import retention, verify
from reelworks.data.checkpoint import save as commit
from reelworks.data.checkpoint.config import CheckpointsConfig
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.load import load

LAST_1 = CheckpointsConfig(keep_last=1, keep_best=None)


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], CheckpointFolder]:
    """Make stores that have step 10, one after another."""
    template = CheckpointFolder(tmp_path / "template")
    save(template, 10)

    def make() -> CheckpointFolder:
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
        one_save.copy(template.root, tmp_path / "checkpoints")
        return CheckpointFolder(tmp_path / "checkpoints")

    return make


def fail_at(number: int, code: int) -> storage.Guard:
    """The call of this number fails, and only it."""
    made = 0

    def guard(kind: str, path: Path) -> None:
        nonlocal made
        made += 1
        if made == number + 1:
            raise OSError(code, os.strerror(code), str(path))

    return guard


def calls_of(work: Callable[[], object]) -> list[Call]:
    with crash.recorded() as calls:
        work()
    return calls


WRITES, OTHERS = ("write",), ("open", "fsync", "rename", "mkdir")


@pytest.mark.parametrize(
    ("code", "kinds", "error"),
    [
        (errno.ENOSPC, WRITES, commit.DiskFull),
        (errno.EDQUOT, WRITES, commit.DiskFull),
        (errno.EIO, WRITES, commit.SaveFailed),
        (errno.EIO, OTHERS, commit.SaveFailed),
    ],
)
def test_an_error_costs_this_save_only(
    fresh: Callable[[], CheckpointFolder], code: int, kinds: tuple[str, ...], error: type[Exception]
) -> None:
    """At each call: the save fails as what it is, or has succeeded; nothing else changes; the next one works."""
    store = fresh()
    before = one_save.listing(store.path(10))
    calls = calls_of(lambda: save(store, 20))
    published = next(n for n, call in enumerate(calls) if is_publishing(call))
    tried = [n for n, call in enumerate(calls) if call.kind in kinds]
    assert {calls[n].kind for n in tried} == {*kinds}
    for n in tried:
        store = fresh()
        # From the fsync after the rename on, the checkpoint is there; after that nothing fails the save.
        if n <= published + 1:
            with storage.guarded(fail_at(n, code)), pytest.raises(error, match=os.strerror(code)) as raised:
                save(store, 20)
            assert type(raised.value) is error
        else:
            with storage.guarded(fail_at(n, code)):
                save(store, 20)
        assert store.steps() == ([10] if n <= published else [10, 20]), calls[n]
        assert one_save.listing(store.path(10)) == before
        assert store.sweep() == []
        assert save(store, 20).info.step == 20
        verify.verify(store.path(20), full=True)


def is_publishing(call: Call) -> bool:
    return call.kind == "rename" and Path(call.path).name.startswith(".tmp-step-")


def test_short_writes_lose_nothing(fresh: Callable[[], CheckpointFolder]) -> None:
    """Each write cut in half by the system in turn, and all of them to 100 bytes."""
    calls = calls_of(lambda: save(fresh(), 20))
    writes = [n for n, call in enumerate(calls) if call.kind == "write"]
    assert len(writes) > 4
    for n in [*writes, None]:
        store, made = fresh(), 0

        def short(kind: str, path: Path, n: int | None = n) -> int | None:
            nonlocal made
            made += 1
            if kind == "write" and n in (None, made - 1):
                return 100 if n is None else calls[n].bytes // 2
            return None

        with storage.guarded(short):
            save(store, 20)
        verify.verify(store.path(20), full=True)
        loaded = state(1)
        load(store.path(20), loaded)
        assert_equal(loaded, state(20))


@pytest.mark.parametrize("most_bytes", [700_000, 5_000])
def test_what_the_system_cut_off_is_not_digested_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    """Digests are those of the files where the system writes less than it was given, large parts and small."""
    store, real = CheckpointFolder(tmp_path), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:most_bytes]))
        one_save.save(store, 50)
    verify.verify(store.path(50), full=True)
    assert one_save.differences(store.path(50), 50) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_error_in_retention_is_finished_by_the_next_one(fresh: Callable[[], CheckpointFolder], code: int) -> None:
    """Whatever call of a deletion fails, the newest stays whole, and the old one goes the next time."""

    def two() -> CheckpointFolder:
        store = fresh()
        save(store, 20)
        return store

    store = two()
    calls = calls_of(lambda: retention.apply_retention(store, LAST_1))
    assert {call.kind for call in calls} == {"open", "write", "rename", "fsync", "unlink", "rmdir"}
    for n in range(len(calls)):
        store = two()
        with storage.guarded(fail_at(n, code)), suppress(OSError):
            retention.apply_retention(store, LAST_1)
        verify.verify(store.path(20), full=True)
        retention.apply_retention(store, LAST_1)
        store.sweep()
        assert store.steps() == [20]
        assert {p.name for p in store.root.iterdir()} <= {"step-000000020", "history.jsonl", "latest", "pins"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB, mounted where only a helper process sees it, and reached through that process."""
    mount = f'mount -t tmpfs -o size=1M none "{tmp_path}" && echo mounted && exec cat'
    try:
        helper = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", mount],
            stdin=PIPE,
            stdout=PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    with helper:
        assert helper.stdout is not None
        if helper.stdout.readline() != "mounted\n":
            pytest.skip("no tmpfs can be mounted here by unshare -rm")
        yield Path(f"/proc/{helper.pid}/root{tmp_path}")


def fill(ballast: Path) -> None:
    """Write until nothing more fits, to the last page."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            with suppress(OSError):
                while file.write(b"\xff" * size):
                    pass


def test_a_disk_that_fills_up_meanwhile(small_disk: Path) -> None:
    """A real disk that someone else fills up before each call in turn: the save fails as that, or is whole."""
    root = small_disk / "checkpoints"
    save(CheckpointFolder(root), 10)
    calls = calls_of(lambda: save(CheckpointFolder(root), 20))
    failed = 0
    for number in range(len(calls)):
        storage.rmtree(root)
        store = CheckpointFolder(root)
        save(store, 10)
        made = 0

        def guard(kind: str, path: Path, number: int = number) -> None:
            nonlocal made
            made += 1
            if made == number + 1:
                fill(small_disk / "ballast")

        with storage.guarded(guard):
            try:
                save(store, 20)
            except commit.DiskFull:
                failed += 1
                assert store.steps() == [10]
            else:
                assert store.steps() == [10, 20]
        assert store.sweep() == []
        (small_disk / "ballast").unlink()
        save(store, 20)
        for step in (10, 20):
            verify.verify(store.path(step), full=True)
    assert 5 < failed < len(calls) - 2
