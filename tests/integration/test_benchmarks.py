"""Benchmarks that wait for a GPU, or for a large disk, run as they are: on tiny networks and little data."""

import subprocess
import sys
from pathlib import Path

import pytest

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
        (["histories", "--histories", "1", "--seed", "1,2", "--json"], ['"seeds": {"1": {', '"2": {', '"commit": "']),
    ],
)  # fmt: skip
def test_it_runs_and_tells_every_row(arguments: list[str], rows: list[str]) -> None:
    name, *options = arguments
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [row for row in rows if row not in done.stdout] == []
