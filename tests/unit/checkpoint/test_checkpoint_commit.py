"""`load(save(state)) == state`, once, and never into another model."""

import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_helpers import EXTRA, assert_equal, save, state

from reelworks.core import digests
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import manifest, shards
from reelworks.data.checkpoint import save as commit
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.load import has_extra, load, read_extra
from reelworks.data.checkpoint.manifest import BadCheckpoint
from reelworks.data.checkpoint.verify import newest_valid, verify


@pytest.fixture
def store(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "run" / "checkpoints")


def names_in(store: CheckpointFolder) -> set[str]:
    return {path.name for path in store.root.iterdir()}


def test_roundtrip(store: CheckpointFolder) -> None:
    saved = save(store, 12000, metrics={"train/loss": 0.25})
    assert names_in(store) == {"step-000012000", "history.jsonl", "latest"}
    assert (store.root / "latest").read_text(encoding="utf-8") == "step-000012000\n"
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


def test_weights_alone(store: CheckpointFolder) -> None:
    saved = save(store, 2)
    weights = {"model": state(1)["model"]}
    load(saved.info.path, weights)
    assert_equal(weights["model"], state(2)["model"])


def test_estimate_covers_what_is_written(store: CheckpointFolder) -> None:
    saved = save(store, 1)
    assert saved.bytes <= shards.num_bytes(shards.tensors_in(state(1))) + sum(map(len, EXTRA.values()))
    large = {"model": {"w": torch.zeros(300, 1000)}}
    written = commit.save(store, 2, large).bytes
    assert written <= shards.num_bytes(shards.tensors_in(large)) * 1.02 <= written * 1.03


def test_saving_a_step_twice_leaves_what_was_saved_last(store: CheckpointFolder) -> None:
    first = save(store, 10)
    again = save(store, 10)
    assert (again.fresh, again.info) == (False, first.info)
    assert len(store.history()) == 1
    other = commit.save(store, 10, state(99))
    assert other.fresh
    loaded = state(1)
    load(store.path(10), loaded)
    assert_equal(loaded, state(99))
    assert names_in(store) == {"step-000000010", "history.jsonl", "latest"}


@pytest.mark.parametrize("name", ["cursor.json", "tensors/rank-00000.safetensors"])
def test_a_checkpoint_in_the_way_that_changed_on_the_disk_is_replaced(store: CheckpointFolder, name: str) -> None:
    """Also one whose sizes are right, and whose tensors nobody has read since."""
    save(store, 10)
    file = store.path(10) / name
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    assert save(store, 10).fresh
    verify(store.path(10), full=True)
    assert names_in(store) == {"step-000000010", "history.jsonl", "latest"}


def test_another_model_is_refused_by_name(store: CheckpointFolder) -> None:
    path = save(store, 10).info.path
    other = {"model": {"a.weight": torch.zeros(4, 3), "b.weight": torch.zeros(2)}}
    with pytest.raises(UserError) as error:
        load(path, other, fixed=True)
    text = str(error.value)
    assert "checkpoint of another model" in text
    assert "model.a.weight: [4, 3] expected, [5, 3] in the checkpoint" in text
    assert "model.b.weight: [2] expected, none in the checkpoint" in text
    assert "model.a.bias: none expected, [5] in the checkpoint" in text
    assert not other["model"]["a.weight"].any()
    many = {"model": {str(i): torch.zeros(1) for i in range(20)}}
    with pytest.raises(UserError, match="and 17 more"):
        load(path, many, fixed=True)
    with pytest.raises(UserError, match="another num_clips"):
        load(path, {"num_clips": torch.zeros(3)}, fixed=True)
    with pytest.raises(UserError, match=r"no such part; it has model, num_clips, optimizer"):
        load(path, {"models": {}})


def test_a_bad_checkpoint_is_not_loaded(store: CheckpointFolder) -> None:
    path = save(store, 10).info.path
    file = path / "state.json"
    content = file.read_bytes()
    file.write_bytes(b"x" * len(content))
    with pytest.raises(BadCheckpoint, match=r"state\.json has changed since"):
        load(path, state(1))
    file.write_bytes(content)
    tensors = path / "tensors" / "rank-00000.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"!")
    with pytest.raises(BadCheckpoint, match=r"rank-00000\.safetensors has changed since"):
        load(path, state(1))
    (path / "manifest.json").unlink()
    with pytest.raises(BadCheckpoint, match=r"manifest\.json is missing"):
        load(path, state(1))


@pytest.mark.parametrize(
    ("saved", "instead", "reason"),
    [
        ('"float32"', '"nn"', "nn is no data type"),
        ('"float32"', '"float33"', "float33"),
        ('"tensors/rank-', '"../../ranks-', "does not lie inside"),
        ('"tensors":{', '"tensor":{', "KeyError"),
    ],
)
def test_a_state_that_was_never_saved_so_is_refused(
    store: CheckpointFolder, saved: str, instead: str, reason: str
) -> None:
    """Though the manifest lists it as it is: whoever hands in a checkpoint may have written both."""
    path = save(store, 10).info.path
    content = (path / "state.json").read_text(encoding="utf-8")
    assert saved in content
    data = content.replace(saved, instead).encode()
    (path / "state.json").write_bytes(data)
    listed = manifest.read(path)
    entry = manifest.FileEntry(path="state.json", size=len(data), digest=digests.of_bytes(data))
    files = tuple(entry if file.path == entry.path else file for file in listed.files)
    changed = listed.model_copy(update={"files": files, "total_bytes": sum(file.size for file in files)})
    (path / "manifest.json").unlink()
    manifest.write(path, changed)
    with pytest.raises(BadCheckpoint, match=rf"state\.json is not understood .*{reason}"):
        load(path, state(1))


def test_extras(store: CheckpointFolder) -> None:
    path = save(store, 10).info.path
    assert has_extra(path, "cursor.json")
    assert not has_extra(path, "other.json")
    with pytest.raises(UserError, match=r"has no other\.json"):
        read_extra(path, "other.json")
    (path / "cursor.json").write_bytes(b'{"plan_step": 8}')
    with pytest.raises(BadCheckpoint):
        read_extra(path, "cursor.json")
    for name in ("manifest.json", "../x", "a/b", "tensors", "state.json", ""):
        with pytest.raises(commit.SaveFailed, match="cannot name an extra"):
            commit.save(store, 20, state(1), extra={name: b""})
    assert store.steps() == [10]


def test_too_little_space_is_said_before_writing(store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 10)
    usage = shutil.disk_usage(store.root)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    before = names_in(store)
    with pytest.raises(commit.DiskFull, match=r"a checkpoint needs .*, 1 kB are free"):
        save(store, 20)
    assert names_in(store) == before
