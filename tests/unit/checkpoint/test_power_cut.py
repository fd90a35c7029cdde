"""A power cut at any moment of a save or a deletion leaves a checkpoint to go on from, none older than was told.

`dropping_disk.py` says what a power cut may leave.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import one_save
import pytest
from dropping_disk import Disk, write_tree

from reelworks.core import storage
from reelworks.data.checkpoint.folder import CheckpointFolder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_save, "NUMBERS", 50)


def survey(tmp_path: Path, limit: int) -> Iterator[list[str]]:
    """What is wrong with each state that is possible while a save with retention runs, from the last moment on."""
    store = CheckpointFolder(tmp_path / "checkpoints")
    one_save.prepare(store)
    disk = Disk(store.root, limit)
    told_at: dict[str, int] = {}
    with disk.watched():
        one_save.work(store, lambda what: told_at.setdefault(what, disk.cuts))
    latest_first = sorted(disk.states.items(), key=lambda found: -found[1])
    for number, (state, cut) in enumerate(latest_first):
        root = tmp_path / str(number)
        write_tree(dict(state), root)
        told = [what for what, at in told_at.items() if cut > at]
        yield one_save.problems_on_resume(CheckpointFolder(root), told)


def test_every_state_that_a_power_cut_may_leave(tmp_path: Path) -> None:
    """A valid checkpoint, its tensors equal, pins and the best there, nothing older than was told."""
    found = list(survey(tmp_path, limit=200))
    assert [wrong for wrong in found if wrong] == []
    assert len(found) >= 200


@pytest.mark.parametrize("what", ["folders", "files"])
def test_what_is_not_made_durable_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Without fsync of folders, or of files, a state is found that is older than was told."""
    real = storage.fsync

    def fsync(fd: int, path: Path) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode) != (what == "folders"):
            real(fd, path)

    monkeypatch.setattr(storage, "fsync", fsync)
    older = "resumed from 40 after ['40 is pinned', '50 is saved'"
    assert any(line.startswith(older) for wrong in survey(tmp_path, limit=32) for line in wrong)
