"""Clips that fail end a run once they are more than `data.max_decode_failures` of its epoch's, and not before."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import children
import pytest

from reelworks.core import files
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import recipe_file

PLANNED = 17  # clips of the footage that are readable and have a caption


def _type_train(recipe: dict[str, Any], *victims: str) -> None:
    """Train by the command line; the victims vanish behind the scan."""
    from reelworks.commands import main

    children.lose_behind_the_scan(*victims)
    path = Path(recipe["output"] + ".toml")
    path.write_text(recipe_file.dump(recipe_file.parse(recipe)), encoding="utf-8")
    sys.argv = ["reelworks", "train", str(path), "--debug"]
    main.main()


@pytest.fixture
def without_two(tiny, footage, tmp_path):
    """Train one epoch of which a video and a picture fail, in steps of their own; returns exit code, output and run."""

    def train(max_decode_failures: float) -> tuple[int, str, RunFolder]:
        folder = Path(shutil.copytree(footage, tmp_path / "footage"))
        recipe = tiny(
            dataset=[{"path": str(folder)}],
            data={"max_decode_failures": max_decode_failures},
            train={"max_epochs": 1},
            validation={"split": 0.0},
        )
        recipe["train"].pop("max_steps")
        victims = (str(folder / name) for name in ("clip-3.mp4", "picture-4.png"))
        code = children.in_child(_type_train, recipe, *victims)
        return code, children.output(recipe), RunFolder(tmp_path / "run")

    return train


def failures(run: RunFolder) -> dict[str, int]:
    """Step in which each clip failed, by file name."""
    return {Path(one["path"]).name: one["step"] for one in events.read(run.events_file, "failure")}


def test_more_failures_than_the_share_end_the_training(without_two):
    """One of 17 is not more than a 17th; the second one is, though it is alone in its step."""
    code, printed, run = without_two(1 / PLANNED)
    assert code == 2, printed
    assert f"error: data.max_decode_failures = {1 / PLANNED!r}: 2 of the epoch's 17 clips" in printed
    assert "remedy: " in printed
    assert "Traceback" not in printed
    assert failures(run).keys() == {"clip-3.mp4", "picture-4.png"}
    first, second = sorted(failures(run).values())
    assert first < second == list(events.read(run.events_file, "step"))[-1]["step"]
    # A run that is killed between the two has no step whose failed clips are not told.
    told = [(event["step"], event["kind"]) for event in events.read(run.events_file, "failure", "step")]
    assert all(told.index((step, "failure")) < told.index((step, "step")) for step in (first, second))
    assert not list(events.read(run.events_file, "epoch_end", "stop"))
    (coverage,) = run.coverage_folder.glob("epoch-*.jsonl")
    assert str(run.coverage_folder) in printed
    told = {Path(line["path"]).name: line["became"] for line in files.read_json_lines(coverage)}
    assert told == {"clip-3.mp4": "failed", "picture-4.png": "failed"}


@pytest.mark.slow  # a whole training; what ends it beyond the share is tested quickly
def test_failures_within_the_share_are_accounted_for_and_training_goes_on(without_two):
    """Two of 17 are not more than two 17ths: each other clip is trained once, and the run finishes."""
    code, printed, run = without_two(2 / PLANNED)
    assert code == 0, printed
    assert failures(run).keys() == {"clip-3.mp4", "picture-4.png"}
    assert "17 planned = 15 trained + 2 failed + 0 skipped" in printed
    (account,) = events.read(run.events_file, "epoch_end")
    assert [account[key] for key in ("planned", "trained", "failed", "skipped")] == [PLANNED, 15, 2, 0]
    trained = Counter(Path(c["path"]).name for line in children.debug_lines(run.path) for c in line["trained"])
    clips = {f"clip-{i}.mp4" for i in range(10)} | {f"picture-{i}.png" for i in range(7)}
    assert trained == Counter(clips - failures(run).keys())
    (stop,) = events.read(run.events_file, "stop")
    assert stop["reason"] == "finished"


def _type_far(recipe: dict[str, Any], given: int) -> None:
    """Train footage that lies in a storage, which gives so many clips after the scan and then none any more."""
    from fsspec.implementations.memory import MemoryFileSystem

    from reelworks.core import retry
    from reelworks.data.media import patience
    from reelworks.training.loop import training_loop
    from reelworks.training.recipe import dataset

    os.environ |= {"REELWORKS_CACHE": recipe["output"] + "-cache", "REELWORKS_CACHE_GB": "1e-9"}
    retry.WAITS_SECONDS, patience._PAUSE_SECONDS, training_loop.AWAY_SECONDS = (), 0.0, 0.2
    for file in Path(recipe["dataset"][0].pop("copied")).iterdir():
        MemoryFileSystem().pipe_file(f"/far/{file.name}", file.read_bytes())
        MemoryFileSystem.store[f"/far/{file.name}"].modified = datetime(2026, 1, 1, tzinfo=UTC)  # of both starts
    scan, asked = dataset.scan_recipe, list[str]()

    def guarded(read: Callable[..., Any]) -> Callable[..., Any]:
        def work(fs: Any, path: str, *rest: Any, **options: Any) -> Any:
            if asked:
                asked.append(path)
            if len(asked) > given + 1:
                raise PermissionError(path)
            return read(fs, path, *rest, **options)

        return work

    def scanned(*args: Any, **kwargs: Any) -> Any:
        result = scan(*args, **kwargs)
        asked.append("the scan")
        return result

    for name in ("get_file", "cat_file"):
        setattr(MemoryFileSystem, name, guarded(getattr(MemoryFileSystem, name)))
    dataset.scan_recipe = scanned
    _type_train(recipe)


@pytest.mark.slow
@pytest.mark.parametrize("split", [0.0, 0.3])
def test_a_storage_that_is_away_ends_a_training_as_a_signal_does(tiny, footage, tmp_path, split):
    """What was trained is saved, no clip has failed, and the same command trains the rest; a start that gets none is refused.

    Nor is a loss told of the held-out clips that were read before.
    """

    def train(given: int) -> tuple[int, str]:
        recipe = tiny(
            dataset=[{"path": "memory://far", "copied": str(footage)}],
            train={"max_epochs": 1},
            data={"num_workers": 0, "prefetch_bytes": "1kB"},
            checkpoints={"every_steps": 1000},
            validation={"split": split, "every_steps": 1} if split else {"split": split},
        )
        recipe["train"].pop("max_steps")
        return children.in_child(_type_far, recipe, given), children.output(recipe)

    run = RunFolder(tmp_path / "run")
    code, printed = train(0)
    assert (code, list(events.read(run.events_file, "step"))) == (2, []), printed
    assert "the storage gives no clip any more (memory://far/" in printed
    code, printed = train(13)
    assert code == 75, printed
    assert "the storage gives no clip any more (memory://far/" in printed
    (stop,) = events.read(run.events_file, "stop")
    (saved,) = events.read(run.events_file, "checkpoint")
    assert (stop["reason"], stop["step"]) == ("storage", saved["step"])
    assert 0 < stop["step"] == list(events.read(run.events_file, "step"))[-1]["step"]
    code, printed = train(1000)
    assert code == 0, printed
    assert re.search(r"(\d+) planned = \1 trained \+ 0 failed \+ 0 skipped", printed)
    assert not failures(run)
    validations = list(events.read(run.events_file, "validation"))
    assert {event["unread"] for event in validations} <= {0}
    steps = {event["step"] for event in events.read(run.events_file, "step")}
    assert {event["step"] for event in validations} - {0} == (steps if split else set())
