"""Benchmarks that wait for a GPU, or for a large disk, run as they are: on tiny networks and little data."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import _crash_stages
from benchmarks._histories import start
from benchmarks._histories.truth import Step

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["lora_memory", "--steps", "1", "--latent", "3", "8", "8"], ["float32", "float8", "int8", "nf4", "CPU memory"]),
        (["checkpoint", "--gb", "0.01", "--json"], ["{"]),
        (
            ["learning", "--only", "clips", "--seeds", "0", "--steps", "30", "--json"],
            ['"named": ', '"false": ', '"cost": ', '"equal_after_kill": true'],
        ),
        (["crash", "--ranks", "--stages", "2", "--json"], ['"kills": 2', '"wrong": []']),
        (["footage", "--only", "frames_*", "--json"], ["{"]),
        (["histories", "--histories", "1", "--seed", "1,2", "--json"], ['"seeds": {"1": {', '"2": {', '"commit": "']),
    ],
)  # fmt: skip
def test_it_runs_and_tells_every_row(arguments: list[str], rows: list[str]) -> None:
    name, *options = arguments
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [row for row in rows if row not in done.stdout] == []


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
