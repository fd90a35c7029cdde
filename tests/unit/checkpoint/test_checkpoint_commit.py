"""`load(save(state)) == state`, and whatever dies or fails in between costs that one save at most."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_helpers import EXTRA, Killed, Machine, assert_equal, save, state

from reelworks.checkpoint import commit, names, retention, space
from reelworks.checkpoint.config import CheckpointsConfig
from reelworks.checkpoint.load import has_extra, load, read_extra
from reelworks.checkpoint.manifest import BadCheckpoint
from reelworks.checkpoint.store import CheckpointStore
from reelworks.checkpoint.verify import newest_valid, verify
from reelworks.core.errors import UserError

LAST_1 = CheckpointsConfig(keep_last=1, keep_best=None)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run" / "checkpoints")


def names_in(store: CheckpointStore) -> set[str]:
    return {path.name for path in store.root.iterdir()}


def test_roundtrip(store: CheckpointStore) -> None:
    saved = save(store, 12000, metrics={"train/loss": 0.25})
    assert names_in(store) == {"step-000012000", "history.jsonl", "latest"}
    assert (store.root / "latest").read_text() == "step-000012000\n"
    found = newest_valid(store, full=True)
    assert found == (saved.info, [])
    assert saved.info.metrics == {"train/loss": 0.25}
    assert saved.info.manifest.run_id == "run"
    on_disk = [p for p in saved.info.path.rglob("*") if p.is_file() and p.name != "manifest.json"]
    assert sorted(e.path for e in saved.info.manifest.files) == sorted(
        p.relative_to(saved.info.path).as_posix() for p in on_disk
    )
    assert saved.bytes == sum(p.stat().st_size for p in on_disk)
    loaded = state(1)
    inner = loaded["model"]["a.weight"]
    load(saved.info.path, loaded)
    assert_equal(loaded, state(12000))
    assert loaded["model"]["a.weight"] is inner
    assert {name: read_extra(saved.info.path, name) for name in EXTRA} == EXTRA
    assert store.history()[-1]["bytes"] == saved.bytes


def test_weights_alone(store: CheckpointStore) -> None:
    saved = save(store, 2)
    weights = {"model": state(1)["model"]}
    load(saved.info.path, weights)
    assert_equal(weights["model"], state(2)["model"])


def test_estimate_covers_what_is_written(store: CheckpointStore) -> None:
    saved = save(store, 1)
    assert saved.bytes <= space.local_bytes(state(1)) + sum(map(len, EXTRA.values()))
    large = {"model": {"w": torch.zeros(300, 1000)}}
    written = commit.save(store, 2, large).bytes
    assert written <= space.local_bytes(large) * 1.02 <= written * 1.03


def test_saving_a_step_twice_changes_nothing(store: CheckpointStore) -> None:
    first = save(store, 10)
    again = commit.save(store, 10, state(99))
    assert (again.fresh, again.info) == (False, first.info)
    assert len(store.history()) == 1


def test_a_bad_checkpoint_in_the_way_is_set_aside(store: CheckpointStore) -> None:
    save(store, 10)
    (store.path(10) / "cursor.json").write_bytes(b'{"row": 8}')
    assert save(store, 10).fresh
    verify(store.path(10), full=True)
    assert len(list(store.root.glob(".bad-step-000000010-*"))) == 1


def test_another_model_is_refused_by_name(store: CheckpointStore) -> None:
    path = save(store, 10).info.path
    other = {"model": {"a.weight": torch.zeros(4, 3), "b.weight": torch.zeros(2)}}
    with pytest.raises(UserError) as error:
        load(path, other)
    text = str(error.value)
    assert "checkpoint of another model" in text
    assert "model.a.weight: [4, 3] here, [5, 3] in the checkpoint" in text
    assert "model.b.weight: [2] here, none in the checkpoint" in text
    assert "model.a.bias: none here, [5] in the checkpoint" in text
    assert not other["model"]["a.weight"].any()
    many = {"model": {str(i): torch.zeros(1) for i in range(20)}}
    with pytest.raises(UserError, match="and 17 more"):
        load(path, many)
    with pytest.raises(UserError, match="another num_clips"):
        load(path, {"num_clips": torch.zeros(3)})


def test_only_our_own_metadata_is_opened(store: CheckpointStore) -> None:
    """The metadata is pickled, so it is read only if it is what the manifest says."""
    path = save(store, 10).info.path
    size = (path / "dcp" / ".metadata").stat().st_size
    (path / "dcp" / ".metadata").write_bytes(b"x" * size)
    with pytest.raises(UserError, match=r"dcp/\.metadata has other content"):
        load(path, state(1))
    (path / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"manifest\.json is missing"):
        load(path, state(1))


def test_extras(store: CheckpointStore) -> None:
    path = save(store, 10).info.path
    assert has_extra(path, "cursor.json")
    assert not has_extra(path, "other.json")
    with pytest.raises(UserError, match=r"has no other\.json"):
        read_extra(path, "other.json")
    (path / "cursor.json").write_bytes(b'{"row": 8}')
    with pytest.raises(BadCheckpoint):
        read_extra(path, "cursor.json")
    for name in ("manifest.json", "../x", "a/b", "dcp", ""):
        with pytest.raises(commit.SaveFailed, match="cannot name an extra"):
            commit.save(store, 20, state(1), extra={name: b""})
    assert store.steps() == [10]


def test_too_little_space_is_said_before_writing(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 10)
    usage = shutil.disk_usage(store.root)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    before = names_in(store)
    with pytest.raises(commit.DiskFull, match=r"a checkpoint needs .* 0\.000 GB are free"):
        save(store, 20)
    assert names_in(store) == before


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, commit.DiskFull), (errno.EIO, commit.SaveFailed)])
def test_a_failing_write_costs_this_save_only(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    save(store, 10)
    before = names_in(store)
    real, calls = os.fsync, [0]
    for fails_at in (1, 2, 4):  # shards, metadata, manifest
        calls[0] = 0

        def fsync(fd: int, fails_at: int = fails_at) -> None:
            calls[0] += 1
            if calls[0] == fails_at:
                raise OSError(code, os.strerror(code))
            real(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            with pytest.raises(kind, match=os.strerror(code)) as error:
                save(store, 20)
        assert type(error.value) is kind
        assert names_in(store) == before
    assert save(store, 20).fresh


def test_everything_is_durable_before_it_is_built_on(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and folders before the rename that publishes, and every rename before anything else."""
    save(store, 5)
    with monkeypatch.context() as patch:
        machine = Machine(patch)
        path = save(store, 10).info.path
        retention.apply_retention(store, LAST_1)
    published = next(i for i, (_, target, _) in enumerate(machine.log) if target == str(path))
    synced = {inode for _, _, inode in machine.log[:published]}
    assert [p for p in [path, *path.rglob("*")] if p.stat().st_ino not in synced] == []
    parent_synced = ("fsync", "", store.root.stat().st_ino)
    assert machine.log[published + 1] == parent_synced
    deleted = next(i for i, (_, target, _) in enumerate(machine.log) if ".trash-" in target)
    assert machine.log[deleted + 1] == parent_synced


def count_operations(root: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    store = CheckpointStore(root)
    save(store, 10)
    with monkeypatch.context() as patch:
        machine = Machine(patch)
        save(store, 20)
        retention.apply_retention(store, LAST_1)
    return machine.count


def test_death_at_every_file_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save step 20 over step 10 and delete step 10, killed at each operation in turn.

    Afterwards a good checkpoint is there with the tensors of its step, the leftovers go with one sweep,
    foreign files are untouched and the next save works.
    """
    template = tmp_path / "template"
    total = count_operations(template, monkeypatch)
    shutil.rmtree(template)
    save(CheckpointStore(template), 10)
    (template / "step-000000020.mine").write_text("foreign")
    resumed = []
    for die_at in range(1, total + 1):
        store = CheckpointStore(tmp_path / str(die_at))
        shutil.copytree(template, store.root)
        with monkeypatch.context() as patch:
            Machine(patch, die_at)
            acknowledged = save_until_death(store)
        resumed.append(check_after_death(store, acknowledged))
        shutil.rmtree(store.root)
    assert total > 15
    assert resumed == sorted(resumed)
    assert set(resumed) == {10, 20}


def save_until_death(store: CheckpointStore) -> int:
    """Return the step that was last said to be saved."""
    acknowledged = 10
    try:
        acknowledged = save(store, 20).info.step
        retention.apply_retention(store, LAST_1)
    except Killed:
        return acknowledged
    raise AssertionError("it lived")


def check_after_death(store: CheckpointStore, acknowledged: int) -> int:
    found = newest_valid(store, full=True)
    assert found is not None
    info, skipped = found
    assert skipped == []
    assert info.step >= acknowledged
    loaded: dict[str, Any] = state(1)
    load(info.path, loaded)
    assert_equal(loaded, state(info.step))
    store.sweep()
    assert store.sweep() == []
    allowed = {names.of_step(10), names.of_step(20), "step-000000020.mine", "history.jsonl", "latest"}
    assert names_in(store) <= allowed
    assert (store.root / "step-000000020.mine").read_text() == "foreign"
    assert save(store, 20).info.step == 20
    assert all(json.loads(line) for line in (store.root / "history.jsonl").read_text().splitlines())
    return info.step
