"""`--nproc-per-node`: several ranks behind one command, with one error and honest exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import recipe_file

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tiny, tmp_path):
    """Start two ranks of a recipe as a user does."""

    def run(**changes: object) -> subprocess.Popen[str]:
        path = tmp_path / "recipe.toml"
        path.write_text(recipe_file.dump(recipe_file.parse(tiny(**changes))), encoding="utf-8")
        command = [sys.executable, "-m", "reelworks", "train", str(path), "--nproc-per-node", "2"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")

    return run


def wait_for_step(run: Path, step: int) -> None:
    deadline = time.monotonic() + 300
    while not any(e["step"] >= step for e in events.read(RunFolder(run).events_file, "step")):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_mistake_is_told_once_with_code_2(start, tmp_path):
    process = start(dataset=[{"path": str(tmp_path / "nowhere")}])
    _, told = process.communicate(timeout=1200)
    assert process.returncode == 2
    assert told.count("error:") == 1
    assert "Traceback" not in told
    assert len(told.splitlines()) < 8


@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGTERM, 2), (signal.SIGUSR1, 2), (signal.SIGHUP, 2), (signal.SIGINT, 1)]
)
def test_a_signal_saves_and_leaves_with_the_requeue_code(start, tmp_path, number, times):
    process = start(train={"max_steps": 400})
    wait_for_step(tmp_path / "run", 2)
    for _ in range(times):
        process.send_signal(number)
    _, told = process.communicate(timeout=1200)
    assert process.returncode == 75, told
    assert "Traceback" not in told
    assert list(events.read(RunFolder(tmp_path / "run").events_file, "stop"))[-1]["reason"] == "signal"


def test_a_terminal_that_goes_away_costs_no_step(start, tmp_path):
    """Its window is closed: nobody reads any more, and then the signal of the system comes."""
    process = start(train={"max_steps": 4000})
    wait_for_step(tmp_path / "run", 2)
    process.stdout.close()
    process.stderr.close()
    wait_for_step(tmp_path / "run", 40)  # a line has been printed since
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=300) == 75
    run = RunFolder(tmp_path / "run")
    (stop,) = events.read(run.events_file, "stop")
    assert CheckpointFolder(run.checkpoints_folder).steps()[-1] == stop["step"]


def test_a_rank_that_dies_ends_the_others(start, tmp_path):

    process = start(train={"max_steps": 4000})
    wait_for_step(tmp_path / "run", 1)
    ranks = psutil.Process(process.pid).children()
    assert len(ranks) == 2
    ranks[1].kill()
    _, told = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGKILL, told
    assert told.count("error: ") == 1, told
    assert "rank 1 was ended by SIGKILL" in told
    assert "Traceback" not in told
    assert not any(rank.is_running() for rank in ranks)


def test_ranks_do_not_outlive_a_killed_launcher(start, tmp_path):

    process = start(train={"max_steps": 4000})
    wait_for_step(tmp_path / "run", 1)
    ranks = psutil.Process(process.pid).children()
    process.kill()
    _, alive = psutil.wait_procs(ranks, timeout=120)
    process.communicate(timeout=120)
    assert not alive
