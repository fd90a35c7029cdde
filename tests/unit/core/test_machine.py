"""Threads are as many as a job may use; they sleep while they wait where a machine is busy, unless somebody chose otherwise."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from reelworks.core import machine, system

SOURCE = Path(machine.__file__).parents[1]


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 128 cores whose cgroups are files of the test."""
    (tmp_path / "own").write_text("0::/job/step\n4:cpu,cpuacct:/docker/abc\n3:memory:/x/y\n", encoding="utf-8")
    monkeypatch.setattr(machine, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(128)), raising=False)
    return tmp_path / "cgroup"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("folder", "files", "expected"),
    [
        ("job/step", {"cpu__max": "400000 100000"}, 4),
        ("job", {"cpu__max": "250000 100000"}, 3),  # a limit above binds those below; no half of a core is lost
        ("", {"cpu__max": "100000 100000"}, 1),  # what a container sees
        ("job/step", {"cpu__max": "max 100000"}, 128),
        ("job/step", {"cpu__max": "10000 100000"}, 1),
        ("job/step", {"cpu__max": "nonsense"}, 128),
        ("cpu,cpuacct/docker/abc", {"cpu__cfs_quota_us": "800000", "cpu__cfs_period_us": "100000"}, 8),
        ("cpu", {"cpu__cfs_quota_us": "200000", "cpu__cfs_period_us": "100000"}, 2),
        ("cpu", {"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "100000"}, 128),
        ("elsewhere", {"cpu__max": "100000 100000"}, 128),
    ],
)
def test_a_limit_of_a_cgroup_counts(cgroups: Path, folder: str, files: dict[str, str], expected: int) -> None:
    write(cgroups / folder, **files)
    assert machine.cores() == expected


def test_affinity_counts(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7})
    assert machine.cores() == 3
    write(cgroups / "job", cpu__max="1600000 100000")
    assert machine.cores() == 3


def test_threads_of_a_rank_are_those_that_the_environment_gives_or_its_share(cgroups: Path) -> None:
    write(cgroups / "job", cpu__max="1000000 100000")
    assert [machine.threads(ranks, {}) for ranks in (1, 3, 20)] == [10, 3, 1]
    given = {text: machine.threads(2, {"OMP_NUM_THREADS": text}) for text in ("3", "8,2", "", "0", "many")}
    assert given == {"3": 3, "8,2": 8, "": 5, "0": 5, "many": 5}


def test_no_other_module_counts_cores() -> None:
    """Neither the package nor its children look past the limits of a job."""
    pattern = re.compile(r"\bcpu_count\(|sched_getaffinity\(")
    found = [path.name for path in SOURCE.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))]
    assert found == ["machine.py"]


def test_memory_within_the_limits_of_cgroups(cgroups: Path) -> None:
    whole = machine.memory_bytes()
    assert whole > 1 << 30
    write(cgroups / "job", memory__max="max")
    assert machine.memory_bytes() == whole
    write(cgroups / "memory" / "x", memory__limit_in_bytes=str(1 << 63))  # no limit, in the first version
    assert machine.memory_bytes() == whole
    write(cgroups / "job", memory__max=str(1 << 29))
    assert machine.memory_bytes() == 1 << 29


@pytest.mark.parametrize(
    ("load", "before", "after"),
    [
        (0.2, {}, {}),
        (4.0, {}, {"OMP_WAIT_POLICY": "passive"}),
        (4.0, {"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
        (4.0, {"GOMP_SPINCOUNT": "1000"}, {"GOMP_SPINCOUNT": "1000"}),
    ],
)
def test_the_load_decides_where_nobody_has(load, before, after, monkeypatch):
    monkeypatch.setattr(system, "load_average", lambda: load)
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(machine, "_GPU_FILES", ())
    environment = dict(before)
    machine.choose_wait_policy(environment)
    assert environment == after


def test_a_gpu_makes_no_choice_needed(monkeypatch, tmp_path):
    monkeypatch.setattr(system, "load_average", lambda: 99.0)
    monkeypatch.setattr(machine, "_GPU_FILES", (str(tmp_path),))
    machine.choose_wait_policy(environment := {})
    assert environment == {}


def test_ones_own_threads_are_no_others(monkeypatch):
    monkeypatch.setattr(system, "load_average", lambda: 4.0)
    monkeypatch.setattr(machine, "cores", lambda: 4)
    assert machine.is_busy()
    assert not machine.is_busy(own_threads=4)
