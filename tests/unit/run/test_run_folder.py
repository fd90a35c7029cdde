from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from reelworks.core.errors import UserError
from reelworks.run import plans
from reelworks.run.folder import FORMAT_VERSION, RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "first")
    folder.create({"slot_width": 2})
    return folder


def test_looking_makes_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert not folder.exists
    assert folder.events_file.parent == folder.path
    assert list(tmp_path.iterdir()) == []


def test_what_is_frozen_is_read_back(run: RunFolder) -> None:
    info = run.info()
    assert run.exists
    assert (info["format"], info["slot_width"], len(info["id"])) == (FORMAT_VERSION, 2, 32)
    assert run.plan_folder.is_dir()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": "1"}'])
def test_no_run_here(run: RunFolder, text: str) -> None:
    run.info_file.write_text(text)
    with pytest.raises(UserError, match="no run in this folder"):
        run.info()


def test_a_newer_run_asks_for_an_update(run: RunFolder) -> None:
    run.info_file.write_text(json.dumps({"format": FORMAT_VERSION + 1}))
    with pytest.raises(UserError, match="update Reelworks"):
        run.info()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written") as caught:
        RunFolder(tmp_path / "file").create({})
    assert caught.value.field == "output"


def _arrays(epoch: int) -> dict[str, np.ndarray]:
    return {"uid": np.arange(5, dtype=np.uint64) + np.uint64(epoch), "rows": np.zeros((0, 2), dtype=np.int64)}


def test_plans_come_back_equal(run: RunFolder) -> None:
    plans.write(run, 0, 3, 1, _arrays(3))
    stored = plans.read(run, 0, 3, 1)
    assert stored is not None
    for name, array in _arrays(3).items():
        assert stored[name].dtype == array.dtype
        assert np.array_equal(stored[name], array)
    assert plans.read(run, 0, 3, 2) is None


def test_plans_that_no_checkpoint_needs_go_and_strange_files_stay(run: RunFolder) -> None:
    strange = [
        run.plan_folder / name for name in ("plan-mine.npz", "plan-000-000000-000.npz.old", "summary.json")
    ]
    for file in strange:
        file.write_text("")
    for epoch in range(6):
        plans.write(run, 0, epoch, 0, _arrays(epoch), in_use=[(0, 1), (0, epoch - 1)])
    kept = [epoch for epoch in range(6) if plans.read(run, 0, epoch, 0) is not None]
    assert kept == [1, 4, 5]
    assert all(file.exists() for file in strange)
    plans.write(run, 1, 0, 0, _arrays(0))  # the data begin anew: those plans are of no use
    assert plans.read(run, 0, 5, 0) is None


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_damaged_plan_is_none(run: RunFolder, damage: str) -> None:
    plans.write(run, 0, 0, 0, _arrays(0))
    file = plans.path(run, 0, 0, 0)
    data = bytearray(file.read_bytes())
    at = data.index(b"NUMPY") + 130  # inside the first array
    data[at] ^= 0xFF
    spoilt = {"cut": data[: len(data) // 2], "flip": data, "empty": b"", "text": b"no plan"}
    file.write_bytes(spoilt[damage])
    assert plans.read(run, 0, 0, 0) is None
