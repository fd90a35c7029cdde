"""Threads are as many as a job may use, not as many as the machine has."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from reelworks.core import cgroups, cores, machine_memory

SOURCE = Path(cores.__file__).parents[1]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 128 cores whose cgroups are files of the test."""
    (tmp_path / "own").write_text("0::/job/step\n4:cpu,cpuacct:/docker/abc\n3:memory:/x/y\n")
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(128)), raising=False)
    return tmp_path / "cgroup"


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


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
def test_a_limit_of_a_cgroup_counts(machine: Path, folder: str, files: dict[str, str], expected: int) -> None:
    write(machine / folder, **files)
    assert cores.count() == expected


def test_affinity_counts(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7})
    assert cores.count() == 3
    write(machine / "job", cpu__max="1600000 100000")
    assert cores.count() == 3


def test_threads_of_a_rank_are_those_that_the_environment_gives_or_its_share(machine: Path) -> None:
    write(machine / "job", cpu__max="1000000 100000")
    assert [cores.threads(ranks, {}) for ranks in (1, 3, 20)] == [10, 3, 1]
    given = {text: cores.threads(2, {"OMP_NUM_THREADS": text}) for text in ("3", "8,2", "", "0", "many")}
    assert given == {"3": 3, "8,2": 8, "": 5, "0": 5, "many": 5}


def test_no_other_module_counts_cores() -> None:
    """Neither the package nor its children look past the limits of a job."""
    pattern = re.compile(r"\bcpu_count\(|sched_getaffinity\(")
    found = [path.name for path in SOURCE.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))]
    assert found == ["cores.py"]


def test_memory_within_the_limits_of_cgroups(machine: Path) -> None:
    whole = machine_memory.total_bytes()
    assert whole > 1 << 30
    write(machine / "job", memory__max="max")
    assert machine_memory.total_bytes() == whole
    write(machine / "memory" / "x", memory__limit_in_bytes=str(1 << 63))  # no limit, in the first version
    assert machine_memory.total_bytes() == whole
    write(machine / "job", memory__max=str(1 << 29))
    assert machine_memory.total_bytes() == 1 << 29
