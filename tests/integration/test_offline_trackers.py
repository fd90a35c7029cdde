"""Weights & Biases and Trackio without a network, where they are installed."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
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
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert "failed" not in done.stdout + done.stderr
    return done.stdout + done.stderr


def logged(file: bytes) -> Iterator[bytes]:
    """Yield the records of a log in blocks of 32 KiB, as LevelDB has them, behind wandb's header of 7 bytes."""
    at, record = 7, b""
    while at < len(file):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", file, at + 4)  # whole, first, middle or last part
        record = (b"" if kind in (1, 2) else record) + file[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record


def test_a_resumed_run_goes_on_in_the_same_run_of_wandb(tiny: Any, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason=REASON)
    for steps in (2, 4):
        assert "no API key is configured; this run is kept in" in train(tiny(), tmp_path, "wandb", steps)
    run = RunFolder(tmp_path / "run")
    kept = sorted((run.path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(kept) == 2
    assert {file.stem for file in kept} == {f"run-{run.info().id}"}
    assert all(b"train/loss" in file.read_bytes() for file in kept)


def test_wandb_gets_what_the_docs_say_and_nothing_that_it_finds_by_itself(tiny: Any, tmp_path: Path) -> None:
    """Judged by its own reader, in a folder of a git repository: `wandb sync` uploads these records."""
    pytest.importorskip("wandb", reason=REASON)
    from wandb.proto import wandb_internal_pb2

    for words in (["init"], ["remote", "add", "origin", "https://git.example/acme/secret-film.git"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    train(tiny(), tmp_path, "wandb", 1)
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    records = [wandb_internal_pb2.Record.FromString(data) for data in logged(file.read_bytes())]
    (run,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
    assert "dataset" in {update.key for update in run.config.update}
    assert (run.host, run.git.remote_url, run.git.commit) == ("", "", "")
    assert not [record for record in records if record.WhichOneof("record_type") == "environment"]
    sent = {each.path for record in records for each in record.files.files}
    assert all(path.startswith("media/") for path in sent)
    assert b"secret-film" not in file.read_bytes()


def test_a_resumed_run_goes_on_in_the_same_run_of_trackio(tiny: Any, tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason=REASON)
    for steps in (2, 4):
        train(tiny(), tmp_path, "trackio", steps)
    run = RunFolder(tmp_path / "run")
    with sqlite3.connect(tmp_path / "trackio" / "tests.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert {row[0] for row in rows} == {f"run-{run.info().id[:6]}"}
    assert [step for _, step, values in rows if "train/loss" in json.loads(values)] == [1, 2, 3, 4]
