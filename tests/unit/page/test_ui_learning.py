"""The page of what a run has learnt shows the run that is there, and leaves clips out by that run's own recipe."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fabricate
import page_client
import prepare_files as made
import pytest

from reelworks.annexes.page import runs
from reelworks.annexes.page.workspace import key_of
from reelworks.data.run.folder import RunFolder
from reelworks.training.coverage import clip_history
from reelworks.training.recipe import dataset, recipe_file


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made.picture(tmp_path / "data" / "0.png")
    return tmp_path


def make_run(path: Path, losses: list[float]) -> RunFolder:
    run = RunFolder(path)
    run.create()
    fabricate.note_losses(run, losses)
    return run


def wall(client: Any, run: RunFolder) -> Any:
    return client.get(f"/api/runs/{key_of(run.path)}/learning?sort=loss").json()


def test_losses_are_those_of_the_run_that_is_there_now(root: Path) -> None:
    with page_client.page(root) as client:
        # What is shown is relative to the median of the losses' logarithms.
        for losses, shown in (([1.0], [1.0]), ([4.0, 2.0], [2**0.5, 2**-0.5])):
            run = make_run(root / "runs" / "cats", losses)
            assert [clip["loss"] for clip in wall(client, run)["clips"]] == pytest.approx(shown)
            shutil.rmtree(run.path)


def test_coverage_is_that_of_the_events_that_are_there_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def cover(run: RunFolder) -> SimpleNamespace:
        read.append(run.events_file.read_text(encoding="utf-8"))
        return SimpleNamespace(epochs=[])

    monkeypatch.setattr(clip_history, "counts", cover)
    run = RunFolder(tmp_path)
    for second, text in enumerate(["a", "a", "b"]):
        run.events_file.write_text(text, encoding="utf-8")
        os.utime(run.events_file, (second // 2, second // 2))
        runs.coverage(run)
    assert read == ["a", "b"]


@pytest.mark.parametrize(("run", "recipe"), [("runs/a", "a.toml"), ("runs/b", "b.toml"), ("runs/c", "a.toml")])
def test_clips_are_left_out_by_the_recipe_that_made_the_run(root: Path, run: str, recipe: str) -> None:
    for name in "ab":
        text = page_client.small_recipe(f"runs/{name}", "data")
        (root / f"{name}.toml").write_text(
            text.replace("\n[[dataset]]", 'catalog = "catalog"\n[[dataset]]', 1), encoding="utf-8"
        )
    dataset.scan_recipe(recipe_file.load(root / "a.toml"))
    shown = make_run(root / run, [1.0])
    shutil.copy(root / "a.toml", shown.recipe_file)
    with page_client.page(root) as client:
        found = wall(client, shown)
    assert (found["data"], found["can_leave_out"]) == (key_of(root / recipe), True)
