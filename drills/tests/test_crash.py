"""Killed at any storage call of a save, a run goes on from what it was told was saved.

`drills/crash.py` does the killing, in a process of its own: one that has threads must not fork.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drills import _crash_stages
from drills._histories import start
from drills._histories.truth import Step

ROOT = Path(__file__).parents[2]


def crash(*arguments: str) -> dict[str, Any]:
    """Return what the drill prints as its last line."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "drills.crash", "--json", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.slow(reason="a process for each of a hundred calls; test_power_cut has the states of kills and many more")
def test_one_rank_killed_at_every_storage_call() -> None:
    """After each kill: nothing older than was told, equal tensors, pins and best there, no litter, resumed twice.

    And these are all calls: strace counts as many changes below the folder as `core.storage` sees.
    """
    result = crash("--ranks", "1", "--strace")
    assert result["wrong"] == []
    assert result["survived"] == result["points"]
    assert result["points"]["1"] > 50
    calls = result["calls"]
    if "skipped" in calls:
        pytest.skip(f"all points were survived, but nobody counted whether they are all: {calls['skipped']}")
    assert calls["seam"] == calls["kernel"]
    assert calls["seam"].keys() == {"fsync", "mkdir", "open", "rename", "rmdir", "unlink", "write"}


@pytest.mark.slow
def test_each_of_two_ranks_killed_at_every_storage_call() -> None:
    """As with one rank; and the other rank ends with an error, and does not hang."""
    result = crash("--ranks", "2")
    assert result["wrong"] == []
    assert result["survived"] == result["points"]
    assert result["points"]["2"] > 50


@pytest.mark.slow
def test_a_training_killed_at_random_times_ends_as_if_undisturbed() -> None:
    """Forty kills, some within saves beside training: weights, average and optimizer are equal to the bit."""
    result = crash("--ranks", "--kills", "40")["training"]
    assert result["wrong"] == []
    assert result["kills"] == 40
    assert result["in_a_save"] > 0


@pytest.mark.slow(reason="four trainings of the demo's model")
def test_a_run_that_differs_is_named_by_its_clips_and_by_its_end(tmp_path: Path) -> None:
    """The drill of stages finds what it looks for: other clips, a step that is not noted, other weights."""
    start.serve()
    drill = _crash_stages.Drill(tmp_path, seed=0)
    life = drill.live(_crash_stages.IN_STAGES, 0, most_kills=0)
    assert life.wrong == []
    life.edited = frozenset({"longer"})
    found = drill.differences(life)
    assert any(text.startswith("other clips: in step ") for text in found)
    assert any(text.startswith("another end") for text in found)
    life.edited = frozenset()
    assert drill.differences(life) == []
    lost = next(entry for entry in life.entries if isinstance(entry, Step))
    life.entries.remove(lost)
    assert {text.partition(":")[0] for text in drill.differences(life)} >= {"steps do not count on", "other steps"}
