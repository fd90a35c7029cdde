"""Saves beside training: what is saved is what was there when they began, and what fails is told by the trainer."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
import torch

from reelworks.core import storage
from reelworks.data.checkpoint import async_save, save
from reelworks.data.checkpoint.async_save import Background, held_bytes
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.load import load
from reelworks.data.checkpoint.shards import tensors_in


def make_state(value: float = 1.0) -> dict[str, object]:
    weight = torch.full((300, 7), value)
    return {
        "model": {"w": weight, "tied": weight, "part": torch.arange(20.0)[5:9]},
        "optimizer": {"step": torch.tensor(value), "betas": [0.9, 0.99], "note": {"rate": value}},
    }


@pytest.fixture
def store(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints")


def test_what_is_saved_is_what_was_there_at_the_start(store: CheckpointFolder) -> None:
    """Whatever training does to tensors and plain values meanwhile."""
    state, gate = make_state(), threading.Event()

    def wait(call: str, _path: Path) -> None:
        if threading.current_thread().name == "checkpoint":
            assert gate.wait(120)

    background = Background()
    with storage.guarded(wait):
        background.start(store, 1, state)
        assert (background.step, background.is_writing) == (1, True)
        state["model"]["w"].add_(5)
        state["optimizer"]["betas"][0] = 0.0
        state["optimizer"]["note"]["rate"] = 9.0
        assert store.steps() == []
        gate.set()
        assert background.finish().fresh
    assert (background.step, background.is_writing) == (None, False)
    found = make_state(0.0)
    load(store.path(1), found)
    expected = make_state()
    for part in expected:
        torch.testing.assert_close(found[part], expected[part])


def test_the_same_memory_serves_all_saves(store: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    state, background = make_state(), Background()
    background.start(store, 1, state)
    background.finish()
    monkeypatch.setattr(async_save, "available_bytes", lambda: 0)
    assert background.lacks_memory(state) == ""
    assert "rank 0 has 0 B of memory left" in background.lacks_memory(state | {"more": torch.zeros(9)})
    first = background._stager.stage(state)["model"]["w"]
    assert background._stager.stage(state)["model"]["w"].data_ptr() == first.data_ptr()


def test_ranks_of_one_machine_need_room_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stage together, and each sees the memory that the others have not taken yet."""
    state = make_state()
    one_bytes = held_bytes(tensors_in(state))
    monkeypatch.setattr(async_save, "available_bytes", lambda: 4 * one_bytes)
    assert Background(processes_on_host=4).lacks_memory(state) == ""
    assert "staging takes" in Background(processes_on_host=5).lacks_memory(state)


def test_a_failure_of_the_thread_is_told_by_the_trainer_and_frees_the_slot(store: CheckpointFolder) -> None:
    def full(call: str, path: Path) -> None:
        if call == "write" and path.suffix == ".safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    background = Background()
    with storage.guarded(full):
        background.start(store, 1, make_state())
        with pytest.raises(save.DiskFull, match="No space left"):
            background.finish()
    assert background.step is None
    assert [p for p in store.root.iterdir() if p.name.startswith(".tmp")] == []
    background.start(store, 1, make_state())
    assert background.finish().info.step == 1


def test_no_room_is_said_before_anything_is_staged(store: CheckpointFolder, monkeypatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 10, "total": 10, "used": 0})())
    background = Background()
    with pytest.raises(save.DiskFull):
        background.start(store, 1, make_state())
    assert background.step is None
    assert background._stager is None


def test_held_bytes_counts_what_is_staged() -> None:
    assert held_bytes(tensors_in({"a": torch.zeros(3, dtype=torch.float64), "b": [torch.zeros(2), 5]})) == 32


def test_memory_is_what_the_machine_or_its_container_has_left(tmp_path: Path, monkeypatch) -> None:
    machine = async_save.available_bytes()
    assert 0 < machine < 1 << 50
    (tmp_path / "memory.max").write_text("1000\n", encoding="utf-8")
    (tmp_path / "memory.current").write_text("700\n", encoding="utf-8")
    (tmp_path / "memory.stat").write_text("anon 400\ninactive_file 200\n", encoding="utf-8")
    monkeypatch.setattr(async_save, "_CGROUP", tmp_path)
    assert async_save.available_bytes() == 500
    (tmp_path / "memory.max").write_text("max\n", encoding="utf-8")
    assert async_save.available_bytes() > 500
