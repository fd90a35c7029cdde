"""Benchmarks and drills that wait for a GPU, or for a large disk, run as they are: on tiny networks and little data."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["benchmarks.lora_memory", "--steps", "1", "--latent", "3", "8", "8"], ["float32", "float8", "int8", "nf4", "CPU memory"]),
        (["benchmarks.checkpoint", "--gb", "0.01", "--json"], ["{"]),
        (
            ["benchmarks.learning", "--only", "clips", "--seeds", "0", "--steps", "30", "--json"],
            ['"named": ', '"false": ', '"cost": ', '"equal_after_kill": true'],
        ),
        (["drills.crash", "--ranks", "--stages", "2", "--json"], ['"kills": 2', '"wrong": []']),
        (["drills.footage", "--only", "frames_*", "--json"], ["{"]),
        (["drills.histories", "--histories", "1", "--seed", "1,2", "--json"], ['"seeds": {"1": {', '"2": {', '"commit": "']),
    ],
)  # fmt: skip
def test_it_runs_and_tells_every_row(arguments: list[str], rows: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=1200,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert [row for row in rows if row not in done.stdout] == []
