"""The examples do what their first lines say: short, run as typed, and exact when they go on."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from reelworks.testing import sample_folder

EXAMPLES = Path(__file__).parents[2] / "examples"
NUM_CLIPS = 12


@pytest.fixture
def footage(tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample_folder(), tmp_path / "footage"))


def run(tmp_path: Path, *command: str | Path) -> list[str]:
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONFAULTHANDLER": "1"}
    done = subprocess.run(
        [*map(str, command)], cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=240, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def launched(processes: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]


def clips_by_epoch(lines: list[str]) -> dict[int, int]:
    found: dict[int, int] = {}
    for line in lines:
        if told := re.match(r"step \d+ epoch (\d+): (\d+) clips", line):
            found[int(told[1])] = found.get(int(told[1]), 0) + int(told[2])
    return found


def test_each_is_short() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} >= {
        "accelerate_loop",
        "checkpoints_only",
        "lightning_loop",
        "own_loop",
        "plan_only",
        "ray_actors",
        "spawned_processes",
    }
    for file in EXAMPLES.glob("*.py"):
        assert len(file.read_text(encoding="utf-8").splitlines()) < 100, file


@pytest.mark.slow
def test_a_plan_needs_no_torch(tmp_path: Path, footage: Path) -> None:
    lines = run(
        tmp_path,
        sys.executable,
        "-c",
        "import runpy, sys\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
        "assert 'torch' not in sys.modules",
        EXAMPLES / "plan_only.py",
        footage,
    )
    assert lines[0].startswith(f"epoch 0: 1 steps of {NUM_CLIPS} clips")


@pytest.mark.slow
def test_an_own_loop_trains_each_clip_once(tmp_path: Path, footage: Path) -> None:
    lines = run(tmp_path, *launched(2), EXAMPLES / "own_loop.py", footage, "--steps", "4")
    assert clips_by_epoch(lines) == {0: NUM_CLIPS, 1: NUM_CLIPS}


@pytest.mark.slow
def test_it_goes_on_with_fewer_processes_as_if_it_had_not_been_interrupted(tmp_path: Path, footage: Path) -> None:
    own = [EXAMPLES / "own_loop.py", footage, "--steps"]
    before, after = run(tmp_path, *launched(2), *own, "3"), run(tmp_path, *launched(1), *own, "6")
    assert after[0] == "goes on at step 3, epoch 1"
    assert clips_by_epoch(before + after) == {0: NUM_CLIPS, 1: NUM_CLIPS, 2: NUM_CLIPS}
    whole = run(tmp_path, *launched(2), *own, "6", "--output", tmp_path / "whole")

    def losses(lines: list[str]) -> list[float]:
        return [float(line.rpartition(" ")[2]) for line in lines if line.startswith("step")]

    assert losses(before + after) == pytest.approx(losses(whole), rel=1e-4)


@pytest.mark.slow
def test_accelerates_checkpoints_hold_the_place(tmp_path: Path, footage: Path) -> None:
    own = [EXAMPLES / "accelerate_loop.py", footage, "--steps"]
    before = run(tmp_path, *launched(2), *own, "3")
    after = run(tmp_path, *launched(1), *own, "4")
    assert "goes on at step 3, epoch 1" in after
    assert clips_by_epoch(before + after) == {0: NUM_CLIPS, 1: NUM_CLIPS}


@pytest.mark.slow
def test_lightnings_checkpoints_hold_the_place(tmp_path: Path, footage: Path) -> None:
    own = [sys.executable, EXAMPLES / "lightning_loop.py", footage, "--steps"]
    before, after = run(tmp_path, *own, "1"), run(tmp_path, *own, "4")
    assert clips_by_epoch(before + after) == {0: NUM_CLIPS}


@pytest.mark.slow
def test_spawned_processes_share_each_epoch(tmp_path: Path, footage: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    lines = run(tmp_path, "env", f"MASTER_PORT={port}", sys.executable, EXAMPLES / "spawned_processes.py", footage)
    assert clips_by_epoch(lines) == {0: NUM_CLIPS, 1: NUM_CLIPS}


@pytest.mark.slow
def test_ray_actors_share_each_epoch(tmp_path: Path, footage: Path) -> None:
    pytest.importorskip("ray")
    lines = run(tmp_path, sys.executable, EXAMPLES / "ray_actors.py", footage)
    assert clips_by_epoch(lines) == {0: NUM_CLIPS, 1: NUM_CLIPS}


@pytest.mark.slow
def test_checkpoints_alone_go_on_and_are_kept_by_rules(tmp_path: Path) -> None:
    own = [sys.executable, EXAMPLES / "checkpoints_only.py", tmp_path / "saved", "--steps"]
    assert run(tmp_path, *own, "23")[0] == "begins at step 0"
    lines = run(tmp_path, *own, "40")
    assert lines[0] == "begins at step 20"
    assert [line.partition(":")[0] for line in lines[1:]] == ["step 20", "step 35", "step 40"]
