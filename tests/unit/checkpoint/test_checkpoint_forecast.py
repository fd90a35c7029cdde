"""What is said before a run about its disk is the most that the policy can come to, and no more."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import places
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reelworks.core import storage, system
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import disk_space
from reelworks.data.checkpoint.config import CheckpointsConfig, KeepBest
from reelworks.data.checkpoint.disk_space import forecast, saves
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.policy import PolicyTime, plan_retention

GB = 10**9
LOSS = "validation/loss"


@dataclass(frozen=True)
class Record:
    step: int
    metrics: dict[str, float]
    pinned: bool = False
    created: float = 0.0
    num_bytes: int = 10
    stage: str = ""
    measured_on: dict[str, str] = field(default_factory=dict)


def measured(step: int, loss: float, former: int, **more: Any) -> Record:
    """Return a checkpoint with a loss, which is of a former series up to a step."""
    return Record(step, {LOSS: loss}, measured_on={LOSS: "former" if step <= former else "present"}, **more)


def config(**keys: object) -> CheckpointsConfig:
    return CheckpointsConfig(**{"every_steps": None, **keys})


def test_the_lines_that_people_read() -> None:
    policy = CheckpointsConfig(every_steps=1000)
    told = forecast(41_200_000_000, policy, saves(policy, 0, 20_000), 180 * GB)
    assert (told.peak_count, told.fails_at_step) == (6, 5000)
    assert told.to_text() == (
        "one checkpoint takes 41.2 GB; the policy peaks at 6 = 247 GB; 180 GB are free: checkpoints will not fit from step 5000 on"
    )
    assert "save_total_limit" in told.warnings()[0]
    there = [Record(step, {}, num_bytes=41_200_000_000) for step in (1000, 2000)]
    resumed = forecast(41_200_000_000, policy, saves(policy, 2000, 20_000), 180 * GB, there)
    assert resumed.fails_at_step is None
    assert [resumed.to_text(), *resumed.warnings()] == [
        "one checkpoint takes 41.2 GB; the policy peaks at 6 = 247 GB; 180 GB are free, existing checkpoints take 82.4 GB"
    ]
    small = CheckpointsConfig(max_disk="100GB", keep_within="2d")
    limited = forecast(41_200_000_000, small, saves(small, 0, 20_000), 1000 * GB)
    assert limited.peak_count == 3
    assert "plus the checkpoints of the last 2d" in limited.to_text()
    assert "max_disk = 100GB is too small" in limited.warnings()[0]


@pytest.mark.parametrize(
    ("every", "done", "last", "expected"),
    [(10, 0, 25, [10, 20, 25]), (10, 20, 40, [30, 40]), (10, 25, 25, []), (None, 5, 25, [25]), (10, 0, 3, [3])],
)
def test_saves_fall_on_multiples_and_on_the_end(every: int | None, done: int, last: int, expected: list[int]) -> None:
    assert saves(CheckpointsConfig(every_steps=every), done, last) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"every_steps": None, "at_epoch_end": True}, [4, 8, 10]),
        ({"every_steps": 5, "at_epoch_end": True}, [4, 5, 8, 10]),
        ({"every_steps": None, "at_best": True, "keep_best": {"metric": "validation/loss"}}, [3, 6, 9, 10]),
        ({"every_steps": None, "every_minutes": 5.0}, [*range(1, 11)]),  # each step may have one
        ({"every_steps": None, "every_minutes": 5.0, "keep_every": 4}, [1, 2, 3, 5, 6, 7, 9, 10]),
        ({"every_steps": None}, [10]),
    ],
)
def test_saves_may_fall_on_ends_of_epochs_validations_and_minutes(policy: dict[str, Any], expected: list[int]) -> None:
    assert saves(CheckpointsConfig(**policy), 0, 10, epoch=4, validations=3) == expected


def test_a_run_without_an_end_is_foreseen_for_its_first_saves() -> None:
    policy = CheckpointsConfig(every_steps=10, keep_every=100)
    steps = saves(policy, 0, 10**15)
    assert (steps[:2], steps[-1]) == ([10, 20], 10**15)
    shorter = forecast(1000, policy, saves(policy, 0, 10_000), 10_000)
    assert shorter.fails_at_step is not None
    assert forecast(1000, policy, steps, 10_000).fails_at_step == shorter.fails_at_step


def test_a_save_is_refused_without_its_margin_and_so_it_is_forecast() -> None:
    policy = config(keep_last=1, keep_best=None)
    assert forecast(1000, policy, [1, 2], 2020).fails_at_step is None
    assert forecast(1000, policy, [1, 2], 2019).fails_at_step == 2


POLICIES = st.builds(
    CheckpointsConfig,
    every_steps=st.none(),
    keep_last=st.integers(1, 4),
    keep_best=st.none() | st.builds(KeepBest, n=st.integers(1, 3)),
    keep_every=st.none() | st.integers(2, 9),
    save_total_limit=st.none() | st.integers(1, 6),
    max_disk=st.none() | st.integers(1, 150).map("{}B".format),
    min_free=st.none() | st.integers(1, 150).map("{}B".format),
)
LOSSES = st.lists(st.just(math.nan) | st.integers(0, 9).map(float), min_size=1, max_size=25)


@settings(max_examples=60)
@given(POLICIES, LOSSES, st.integers(0, 200), st.integers(0, 4), st.booleans(), st.integers(0, 9))
def test_no_run_comes_to_more_than_was_said(policy, losses, free_bytes, present, pinned, former) -> None:
    """A run simulated save by save, with the metrics that came: never more at once, never full before it was said."""
    there: list[Record] = []
    for i, loss in enumerate(losses[:present], 1):
        there = [*there, measured(i, loss, former, pinned=pinned and i == 1)]
        there = survivors(there, policy, math.inf)
    room = free_bytes + 10 * len(there)
    steps = [*range(present + 1, len(losses) + 1)]
    told = forecast(10, policy, steps, free_bytes, there)
    most, full = len(there), None
    there = survivors(there, policy, room)  # before the first save
    for step in steps:
        if 10 * len(there) + 10 * disk_space.MARGIN > room and full is None:
            full = step
        most = max(most, len(there) + 1)
        there = survivors([*there, measured(step, losses[step - 1], former)], policy, room)
    assert most <= told.peak_count
    if full is not None:
        assert told.fails_at_step is not None
        assert told.fails_at_step <= full


def survivors(records: list[Record], policy: CheckpointsConfig, room: float) -> list[Record]:
    free = 10**9 if room == math.inf else int(room) - 10 * len(records)
    decisions = plan_retention(records, policy, PolicyTime(0.0, next_bytes=10, free_bytes=free))
    keep = {d.step for d in decisions if d.keep}
    return [r for r in records if r.step in keep]


@pytest.mark.parametrize(
    "policy",
    [config(), config(keep_last=1), config(keep_best=None), config(keep_last=2, keep_every=7, keep_best=KeepBest(n=3)),
     config(save_total_limit=4), config(save_total_limit=1), config(keep_every=5, max_disk="65B")],
)  # fmt: skip
def test_the_worst_run_comes_to_exactly_what_was_said(policy: CheckpointsConfig) -> None:
    """Worst is a run that only gets worse: its best are its oldest, and older still is the best of a former series."""
    steps = [*range(1, 24)]
    told = forecast(10, policy, steps, 10_000)
    there, most = [], 0
    for step in steps:
        most = max(most, len(there) + 1)
        there = survivors([*there, measured(step, float(step), former=1)], policy, math.inf)
    assert told.peak_count == most
    assert told.fails_at_step is None


def test_probing_tries_the_disk_that_checkpoints_go_to(tmp_path: Path) -> None:
    """Also where `checkpoints` is a link to another disk; nothing is left behind."""
    disk, folder = tmp_path / "disk", tmp_path / "run" / "checkpoints"
    disk.mkdir()
    folder.parent.mkdir()
    places.link(folder, disk)
    found = disk_space.probe(folder)
    assert (found.path, found.locks) == (disk, True)
    assert abs(found.free_bytes - shutil.disk_usage(disk).free) < GB
    assert list(disk.iterdir()) == []
    assert disk_space.probe(tmp_path / "new" / "checkpoints").path.is_dir()


@pytest.mark.parametrize(
    ("call", "code", "said", "remedy"),
    [("write", 122, "cannot be written to", "raise the quota"), ("write", 28, "cannot be written to", "free disk space"),
     ("fsync", 5, "cannot be created", "fix"), ("rename", 1, "cannot rename files", "fix"),
     ("mkdir", 30, "cannot be created", "fix")],
)  # fmt: skip
def test_probing_says_what_every_save_would_meet(tmp_path: Path, call: str, code: int, said: str, remedy: str) -> None:
    def fail(what: str, path: Path) -> None:
        if what == call:
            raise OSError(code, os.strerror(code))

    with storage.guarded(fail), pytest.raises(UserError, match=said) as error:
        disk_space.probe(tmp_path / "checkpoints")
    assert remedy in error.value.remedy
    assert os.strerror(code) in error.value.problem
    assert CheckpointFolder(tmp_path / "checkpoints").sweep() == []


def test_a_disk_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "no locks available")

    monkeypatch.setattr(system, "_lock", refuse)
    assert dataclasses.asdict(disk_space.probe(tmp_path))["locks"] is False
