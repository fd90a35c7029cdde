"""A bad checkpoint is found, passed over with its reason, and set aside only once a good one is loaded."""

import errno
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from checkpoint_helpers import write_plain
from refused import refused

from reelworks.core import digests, retry
from reelworks.data.checkpoint import load
from reelworks.data.checkpoint.folder import CheckpointFolder, CheckpointInfo
from reelworks.data.checkpoint.manifest import BadCheckpoint
from reelworks.data.checkpoint.verify import named, newest_valid, verify

DATA = "tensors/rank-00000.safetensors"


@pytest.fixture
def store(tmp_path: Path) -> CheckpointFolder:
    store = CheckpointFolder(tmp_path)
    for step in (100, 200, 300):
        write_plain(store, step)
    return store


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES = [
    (truncate, DATA, True), (grow, DATA, True), (Path.unlink, DATA, True), (flip, DATA, False), (zero, DATA, False),
    (truncate, "manifest.json", True), (Path.unlink, "manifest.json", True), (flip, "manifest.json", True),
    (zero, "manifest.json", True), (truncate, "cursor.json", True), (flip, "cursor.json", True),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "name", "seen_at_once"), DAMAGES)
def test_damage_is_found(
    store: CheckpointFolder, damage: Callable[[Path], None], name: str, seen_at_once: bool
) -> None:
    verify(store.path(300), full=True)
    damage(store.path(300) / name)
    with pytest.raises(BadCheckpoint, match=name):
        verify(store.path(300), full=True)
    if seen_at_once:
        with pytest.raises(BadCheckpoint, match=name):
            verify(store.path(300), full=False)
    else:
        verify(store.path(300), full=False)


def test_the_newest_good_one_is_found(store: CheckpointFolder) -> None:
    truncate(store.path(300) / DATA)
    flip(store.path(200) / "cursor.json")
    write_plain(store, 50)
    found = newest_valid(store, full=True)
    assert found is not None
    info, skipped = found
    assert info.step == 100
    assert skipped == [
        (300, f"{DATA} has 100 bytes instead of 200"),
        (200, "cursor.json has changed since it was written"),
    ]
    assert store.steps() == [50, 100, 200, 300]


@pytest.mark.parametrize("good", [[], [100], [300], [500], [200, 400]])
def test_bad_ones_are_set_aside_once_a_good_one_is_loaded(
    store: CheckpointFolder, good: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Each is told once. Where none is good, the storage or the memory may be at fault, and all stay; of others the newest three stay."""
    steps = [*store.steps(), 400, 500]
    for step in steps[3:]:
        write_plain(store, step)
    for step in {*steps} - {*good}:
        flip(store.path(step) / DATA)

    def newest() -> int:
        found = load.load_newest(store, lambda info: verify(info.path, full=True), quarantine=True)
        assert found is not None
        return found[0].step

    if good:
        assert newest() == max(good) == newest()
    else:
        with refused("no-good-checkpoint", "checkpoints"):
            newest()
    bad = [step for step in steps if good and step > max(good)]
    told = [each.args[0] for each in caplog.records if each.msg.endswith("is skipped: %s") and each.args]
    assert not good or told == bad[::-1]
    assert store.steps() == [step for step in steps if step not in bad]
    aside = sorted(path.name for path in store.root.glob(".bad-*"))
    assert [int(name.split("-")[2]) for name in aside] == bad[-3:]
    assert all(entry["reason"] == f"{DATA} has changed since it was written" for entry in store.history())


@pytest.mark.parametrize("gone", [200, 300])
def test_a_bad_one_that_somebody_deletes_while_another_is_loaded_is_no_loss(store: CheckpointFolder, gone: int) -> None:
    for step in (200, 300):
        flip(store.path(step) / DATA)

    def attempt(info: CheckpointInfo) -> None:
        verify(info.path, full=True)
        shutil.rmtree(store.path(gone))

    found = load.load_newest(store, attempt, quarantine=True)
    assert found is not None
    assert found[0].step == 100
    assert store.steps() == [100]


def test_one_that_its_run_deletes_before_it_is_read_is_passed_over(
    store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    protect = load._protect

    def deleted(path: Path, stack: ExitStack) -> None:
        shutil.rmtree(store.path(300), ignore_errors=True)
        protect(path, stack)

    monkeypatch.setattr(load, "_protect", deleted)
    assert load.load_newest(store, lambda info: info.step) == (store.info(200), 200)


def test_all_bad_is_an_error_that_moves_nothing(store: CheckpointFolder) -> None:
    for step in store.steps():
        truncate(store.path(step) / DATA)
    with refused("no-good-checkpoint", "checkpoints", says="step 300: .*step 100: ") as error:
        newest_valid(store, full=False)
    assert "move them away" in error.value.remedy
    assert store.steps() == [100, 200, 300]


def test_none_at_all_is_none(tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path)
    (tmp_path / ".tmp-step-000000100-0123456789ab").mkdir()
    assert newest_valid(store, full=True) is None


def test_a_named_step_never_falls_back(store: CheckpointFolder) -> None:
    assert named(store, 200, full=True).step == 200
    truncate(store.path(200) / DATA)
    with refused("checkpoint-bad", "step"):
        named(store, 200, full=False)
    with refused("no-such-checkpoint", "step", says="steps with a checkpoint: 100, 200, 300"):
        named(store, 150, full=False)
    assert store.steps() == [100, 200, 300]


def test_a_newer_format_is_neither_bad_nor_passed_over(store: CheckpointFolder) -> None:
    file = store.path(300) / "manifest.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"format": 2', '"format": 3'), encoding="utf-8")
    with refused("checkpoint-bad", "checkpoint"):
        newest_valid(store, full=False)
    assert store.steps() == [100, 200, 300]


@pytest.mark.parametrize(("times", "code"), [(2, errno.EIO), (99, errno.ESTALE)])
def test_errors_that_pass_are_no_verdict(
    store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, times: int, code: int
) -> None:
    left, real = [times], digests.of_file

    def unsteady(path: Path) -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(code, "storage is away")
        return real(path)

    monkeypatch.setattr(retry, "WAITS_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(digests, "of_file", unsteady)
    if times == 2:
        found = newest_valid(store, full=True)
        assert found is not None
        assert found[0].step == 300
    else:
        with refused("checkpoint-unreadable", "checkpoint"):
            newest_valid(store, full=True)
    assert store.steps() == [100, 200, 300]
