from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from refused import refused

from reelworks.data.loader import plan_cache
from reelworks.data.run.folder import FORMAT_VERSION, RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "first")
    folder.create(ranks=2)
    return folder


def test_looking_makes_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert not folder.exists
    assert folder.events_file.parent == folder.path
    assert list(tmp_path.iterdir()) == []


def test_what_is_frozen_is_read_back(run: RunFolder) -> None:
    info = run.info()
    assert run.exists
    assert (info.format, info.ranks, len(info.id)) == (FORMAT_VERSION, 2, 32)
    assert run.plan_folder.is_dir()


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "{}", '{"format": "1"}', '{"format": 3}', '{"format": 3, "id": "a", "created": 1, "ranks": "two"}',
        '{"format": 3, "id": 5, "created": 1, "ranks": 1}', '{"format": 3, "id": "a", "created": 1, "ranks": 0}',
    ],
)  # fmt: skip
def test_no_run_here(run: RunFolder, text: str) -> None:
    run.info_file.write_text(text, encoding="utf-8")
    with refused("no-run", "RUN", says="its run.json is damaged"):
        run.info()


def test_a_run_that_cannot_be_read_is_not_called_damaged(run: RunFolder) -> None:
    run.info_file.unlink()
    run.info_file.mkdir()
    with refused("no-run", "RUN", says="cannot be read"):
        run.info()


@pytest.mark.parametrize(("age", "remedy"), [(1, "use the version that wrote it"), (-1, "update Reelworks")])
def test_a_run_of_another_version_says_which_version_to_use(run: RunFolder, age: int, remedy: str) -> None:
    run.info_file.write_text(json.dumps({"format": FORMAT_VERSION - age}), encoding="utf-8")
    with refused("run-of-another-version", "RUN", says=remedy):
        run.info()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with refused("file-unwritable", "output") as caught:
        RunFolder(tmp_path / "file").create()
    assert caught.value.field == "output"


def _arrays(epoch: int) -> dict[str, np.ndarray]:
    return {"uid": np.arange(5, dtype=np.uint64) + np.uint64(epoch), "rows": np.zeros((0, 2), dtype=np.int64)}


def test_plans_come_back_equal(run: RunFolder) -> None:
    plan_cache.shared(run, 0, 3, 1, "a", lambda: _arrays(3))
    stored = plan_cache.shared(run, 0, 3, 1, "a", lambda: pytest.fail("it is there"))
    for name, array in _arrays(3).items():
        assert stored[name].dtype == array.dtype
        assert np.array_equal(stored[name], array)


def test_plans_of_former_epochs_go_and_strange_files_stay(run: RunFolder) -> None:
    strange = [run.plan_folder / name for name in ("plan-mine", "plan-000-000000-000.old", "summary.json")]
    for file in strange:
        file.write_text("", encoding="utf-8")
    for epoch in range(6):
        plan_cache.shared(run, 0, epoch, 0, "", lambda epoch=epoch: _arrays(epoch))
    plan_cache.drop(run, (0, 4))  # the last one was planned ahead
    assert [epoch for epoch in range(6) if plan_cache.path(run, 0, epoch, 0).is_dir()] == [4, 5]
    assert all(file.exists() for file in strange)
    plan_cache.drop(run, (1, 0))  # the data begin anew: those plans are of no use
    assert not plan_cache.path(run, 0, 5, 0).exists()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text", "missing"])
@pytest.mark.parametrize("file", ["uid.npy", "about.json"])
def test_a_damaged_plan_is_made_again(run: RunFolder, damage: str, file: str) -> None:
    plan_cache.shared(run, 0, 0, 0, "", lambda: _arrays(9))
    hurt = plan_cache.path(run, 0, 0, 0) / file
    data = bytearray(hurt.read_bytes())
    data[-9] ^= 0xFF
    spoilt = {"cut": data[: len(data) // 2], "flip": data, "empty": b"", "text": b"no plan"}
    if damage == "missing":
        hurt.unlink()
    else:
        hurt.write_bytes(spoilt[damage])
    again = plan_cache.shared(run, 0, 0, 0, "", lambda: _arrays(0))
    assert np.array_equal(again["uid"], _arrays(0)["uid"])


def test_one_process_makes_a_plan_and_all_map_it(run: RunFolder) -> None:
    made: list[str] = []

    def make(of: str) -> dict[str, np.ndarray]:
        made.append(of)
        time.sleep(0.05)
        return _arrays(1)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: plan_cache.shared(run, 0, 1, 0, "a", lambda: make("a")), range(4)))
    assert made == ["a"]
    assert all(isinstance(arrays["uid"].base, np.memmap) for arrays in found)
    other = plan_cache.shared(run, 0, 1, 0, "b", lambda: make("b"))  # of other data: that of "a" is no use
    assert made == ["a", "b"]
    assert np.array_equal(found[0]["uid"], other["uid"])  # and who maps the former one keeps it
