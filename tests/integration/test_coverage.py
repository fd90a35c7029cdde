"""What `coverage` says of each clip is what ranks logged behind their optimizer steps, clip by clip."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import children
import numpy as np
import pytest
from PIL import Image

from reelworks.core import files
from reelworks.data.run.folder import RunFolder
from reelworks.training.coverage import clip_history
from reelworks.training.coverage.coverage import Coverage

SEVERAL_EPOCHS = {"bucket": [{"resolution": "32px", "num_frames": [1, 5], "batch_size": [4, 3]}]}


def logged(run: Path) -> dict[tuple[int, int, int], int]:
    """Step that trained each (epoch, uid, copy), of what a resume repeated the last telling alone."""
    last = {}
    for rank in (run / "debug").glob("steps-rank-*.jsonl"):
        for line in files.read_json_lines(rank):
            last[rank.name, line["step"]] = line
    return {
        (line["epoch"], clip["uid"], clip["copy"]): line["step"] for line in last.values() for clip in line["trained"]
    }


def covered(told: Coverage) -> dict[tuple[int, int, int], int]:
    return {
        (epoch.epoch, clip.uid, clip.copy): epoch.step
        for clip in told.report(told.places()).clips
        for epoch in clip.epochs
        if epoch.became == "trained"
    }


def became(told: Coverage, epoch: int) -> Counter[str]:
    return Counter(clip.epochs[epoch].became for clip in told.report(told.places()).clips)


def own_footage(footage: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(footage, tmp_path / "footage"))


def test_coverage_equals_the_log_also_where_the_run_was_moved(tiny, tmp_path):
    assert children.train(tiny(train={"max_steps": 14}, **SEVERAL_EPOCHS), debug=True) == [0]
    run = RunFolder(tmp_path / "run")
    told = clip_history.cover(run)
    assert covered(told) == logged(run.path)
    assert len(told.epochs) == 3
    for epoch in told.epochs:
        assert epoch.adds_up
        assert epoch.available
    reasons = became(told, 0)
    assert {"no_caption", "unreadable", "held_out"} <= reasons.keys()
    assert sum(reasons.values()) == 19
    assert became(told, 2)["not_yet"] > 0
    moved = RunFolder(run.path.rename(tmp_path / "elsewhere"))
    assert covered(clip_history.cover(moved)) == logged(moved.path)


@pytest.mark.slow
def test_a_resume_after_changes_needs_no_plan_file(tiny, tmp_path):
    """The record tells which clips are done."""
    one_epoch = {"validation": {"split": 0.0}, "checkpoints": {"every_steps": 2}}
    before = tiny(train={"max_steps": 3}, **one_epoch)
    assert children.train(before, debug=True) == [0]
    children.lose_plans(tmp_path / "run")
    after = tiny(
        train={"max_epochs": 1},
        bucket=[{"resolution": "32px", "num_frames": [1, 5], "batch_size": [2, 1]}],
        **one_epoch,
    )
    after["train"].pop("max_steps")
    assert children.train(after, debug=True) == [0]
    told = clip_history.cover(RunFolder(tmp_path / "run"))
    assert covered(told) == logged(tmp_path / "run")
    (epoch,) = told.epochs
    assert epoch.adds_up
    assert epoch.counts["trained"] == epoch.planned


@pytest.mark.slow
def test_a_killed_and_resumed_run_is_told_as_it_went(tiny, tmp_path):
    recipe = tiny(train={"max_steps": 9, "gradient_accumulation_steps": 2}, **SEVERAL_EPOCHS)
    assert children.train(recipe, fault=("after the optimizer stepped", 6), debug=True) != [0]
    assert covered(clip_history.cover(RunFolder(tmp_path / "run"))).items() <= logged(tmp_path / "run").items()
    assert children.train(recipe, debug=True) == [0]
    told = clip_history.cover(RunFolder(tmp_path / "run"))
    assert covered(told) == logged(tmp_path / "run")
    assert all(epoch.adds_up for epoch in told.epochs)


@pytest.mark.slow
def test_clips_that_come_and_go_in_mid_epoch(tiny, footage, tmp_path):
    folder = own_footage(footage, tmp_path)
    changes = {"dataset": [{"path": str(folder)}], "validation": {"split": 0.0}}
    assert children.train(tiny(train={"max_steps": 2}, **changes), debug=True) == [0]
    run = RunFolder(tmp_path / "run")
    told = clip_history.cover(run)
    left = [c for c in told.report(told.places()).clips if c.epochs[0].became == "not_yet"]
    gone = next(c.path for c in left if c.path.endswith(".mp4"))
    (folder / Path(gone).name).unlink()
    picture = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(picture).save(folder / "late.png")
    (folder / "late.txt").write_text("came late", encoding="utf-8")
    assert children.train(tiny(train={"max_steps": 5}, **changes), debug=True) == [0]
    told = clip_history.cover(run)
    assert covered(told) == logged(run.path)
    assert told.epochs[0].adds_up
    (late,) = told.report(told.places(clip="late.png")).clips
    assert late.epochs[0].became in ("trained", "not_yet")
    (lost,) = told.report(told.places(clip=Path(gone).name)).clips
    assert lost.epochs[0].became == "removed"
    assert lost.path == gone


def test_a_failing_clip_is_named_with_its_reason(tiny, footage, tmp_path):
    folder = own_footage(footage, tmp_path)
    recipe = tiny(dataset=[{"path": str(folder), "repeats": 2}], train={"max_epochs": 1}, validation={"split": 0.0})
    recipe["train"].pop("max_steps")
    assert children.in_child(children.lose_a_file, recipe, str(folder / "clip-3.mp4")) == 0
    told = clip_history.cover(RunFolder(tmp_path / "run"))
    assert covered(told) == logged(tmp_path / "run")
    (epoch,) = told.epochs
    assert epoch.adds_up
    assert epoch.counts["failed"] == 2
    for clip in told.report(told.places(clip="clip-3.mp4")).clips:
        assert clip.epochs[0].became == "failed"
        assert "No such file" in (clip.epochs[0].reason or "")
    never = {clip.path for clip in told.report(told.places(never_trained=True)).clips}
    assert never == {"footage/clip-3.mp4", "footage/damaged.mp4", "footage/no-caption.mp4"}


@pytest.mark.slow(
    reason="three processes; histories go through changed plans with any number of ranks without training"
)
def test_two_ranks_and_other_buckets_in_mid_epoch(tiny, tmp_path):
    changes = {"validation": {"split": 0.0}}
    assert children.train(tiny(train={"max_steps": 1}, **changes, **SEVERAL_EPOCHS), world=2, debug=True) == [0, 0]
    assert children.train(tiny(train={"max_steps": 3}, **changes), debug=True) == [0]
    run = RunFolder(tmp_path / "run")
    told = clip_history.cover(run)
    assert covered(told) == logged(run.path)
    (epoch,) = told.epochs
    assert epoch.adds_up


@pytest.mark.slow
def test_data_that_began_again_have_epochs_of_their_own(tiny, tmp_path):
    """What the first generation trained is not taken for what the second one did."""
    (tmp_path / "bad.txt").write_text("footage/no such clip.mp4\n", encoding="utf-8")
    named = tiny(train={"max_steps": 2}, exclude_file=str(tmp_path / "bad.txt"))
    assert children.train(named, debug=True) == [0]
    assert "warning: exclude_file names footage/no such clip.mp4" in children.output(named)
    first = logged(tmp_path / "run")
    assert children.train(tiny(train={"max_steps": 3}), debug=True, restart_data=True) == [0]
    told = clip_history.cover(RunFolder(tmp_path / "run"))
    assert [(one.data_restarts, one.epoch, one.counts["trained"]) for one in told.epochs] == [
        (0, 0, len(first)),
        (1, 0, sum(step == 3 for step in logged(tmp_path / "run").values())),
    ]
    assert all(one.adds_up for one in told.epochs)
