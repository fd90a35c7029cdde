"""Weights & Biases and Trackio without a network, where they are installed."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from reelworks.data.run.folder import RunFolder

REASON = "the package is an extra, which is not installed"

pytestmark = pytest.mark.slow


def train(recipe: dict[str, Any], tmp_path: Path, name: str, steps: int) -> str:
    """Train in a process of its own, as the package writes where its environment says."""
    file = tmp_path / "recipe.toml"
    logging = {"trackers": [name], "project": "tests"}
    file.write_text(tomli_w.dumps({**recipe, "logging": logging}), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "TRACKIO"))}
    environment |= {"TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-m", "reelworks", "train", str(file), "--max-steps", str(steps)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_resumed_run_goes_on_in_the_same_run_of_wandb(tiny: Any, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason=REASON)
    for steps in (2, 4):
        assert "no API key is configured; this run is kept in" in train(tiny(), tmp_path, "wandb", steps)
    run = RunFolder(tmp_path / "run")
    kept = sorted((run.path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(kept) == 2
    assert {file.stem for file in kept} == {f"run-{run.info().id}"}
    assert all(b"train/loss" in file.read_bytes() for file in kept)


def test_a_resumed_run_goes_on_in_the_same_run_of_trackio(tiny: Any, tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason=REASON)
    for steps in (2, 4):
        train(tiny(), tmp_path, "trackio", steps)
    run = RunFolder(tmp_path / "run")
    with sqlite3.connect(tmp_path / "trackio" / "tests.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert {row[0] for row in rows} == {f"run-{run.info().id[:6]}"}
    assert [step for _, step, values in rows if "train/loss" in json.loads(values)] == [1, 2, 3, 4]
