"""In one epoch every readable, captioned clip that fits and is not held out is trained exactly once."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import children
import faults
import numpy as np
import pytest

from reelworks.data.loader import prefetch
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.reports import run_data

# Where only the beginning and the end matter: little to audit, nothing to validate.
BARE = {"buckets": {"aspect_ratios": ["1:1"]}, "validation": {"split": 0.0}}


def scanned_less_named(run: Path, footage: Path) -> Counter[str]:
    """Files on disk less those that the run's summary names with a reason."""
    told = json.loads((run / "plan" / "summary.json").read_text(encoding="utf-8"))
    named = {Path(one["path"]).name for files in told["reasons"].values() for one in files}
    return Counter(p.name for p in footage.iterdir() if p.suffix in (".mp4", ".png") and p.name not in named)


def trained(run: Path) -> Counter[str]:
    """Files that ranks logged behind their optimizer steps."""
    return Counter(Path(c["path"]).name for line in children.debug_lines(run) for c in line["trained"])


@pytest.mark.parametrize(
    ("batch_sizes", "incomplete", "world"),
    [
        pytest.param([1, 1], "partial", 1, marks=pytest.mark.slow),
        pytest.param([3, 2], "pad", 1, marks=pytest.mark.slow),
        ([5, 4], "partial", 2),
    ],
)
def test_trained_equals_the_catalog_less_the_reasons(tiny, footage, tmp_path, batch_sizes, incomplete, world):
    recipe = tiny(
        bucket=[{"resolution": "32px", "num_frames": [1, 5], "batch_size": batch_sizes}],
        buckets={"incomplete_batch": incomplete},
        train={"max_steps": None, "max_epochs": 1},
    )
    recipe["train"].pop("max_steps")
    assert children.train(recipe, debug=True, world=world) == [0] * world
    run = tmp_path / "run"
    assert trained(run) == scanned_less_named(run, footage)
    assert len(trained(run)) >= 12
    (account,) = events.read(RunFolder(run).events_file, "epoch_end")
    n = len(trained(run))
    assert (account["planned"], account["trained"]) == (n, n)
    assert f"{n} planned = {n} trained + 0 failed + 0 skipped" in children.output(recipe)


def _lose_one(recipe: dict) -> None:
    """Train with a planted loss: the third clip that is read never counts."""
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    original, seen = prefetch.valid_clips, []

    def lossy(work, failures):
        is_valid, named = original(work, failures)
        seen.append(work)
        if len(seen) == 3:
            is_valid[0] = False
        return is_valid, named

    prefetch.valid_clips = lossy
    run(recipe_file.parse(recipe), TrainRequest(debug=True))


def test_a_planted_loss_is_noticed(tiny, footage, tmp_path):
    recipe = tiny(validation={"split": 0.0}, train={"max_epochs": 1})
    recipe["train"].pop("max_steps")
    assert children.in_child(_lose_one, recipe) == 1
    assert " were lost: Counts" in children.output(recipe)
    assert trained(tmp_path / "run") != scanned_less_named(tmp_path / "run", footage)


def test_a_clip_that_vanishes_after_the_scan_is_named_and_shifts_nothing(tiny, footage, tmp_path):
    import shutil

    copy = tmp_path / "footage"
    shutil.copytree(footage, copy)
    changes = {"validation": {"split": 0.0}, "train": {"max_epochs": 1}, "dataset": [{"path": str(copy)}]}
    calm, hurt = tiny("calm", **changes), tiny("hurt", **changes)
    for recipe in (calm, hurt):
        recipe["train"].pop("max_steps")
    assert children.train(calm, debug=True) == [0]
    victim = copy / "clip-3.mp4"
    assert children.in_child(children.lose_a_file, hurt, str(victim)) == 0
    assert trained(tmp_path / "calm") - trained(tmp_path / "hurt") == Counter([victim.name])
    (account,) = events.read(RunFolder(tmp_path / "hurt").events_file, "epoch_end")
    assert account["failed"] == 1
    assert account["planned"] == account["trained"] + 1
    (failure,) = events.read(RunFolder(tmp_path / "hurt").events_file, "failure")
    assert failure["path"].endswith("clip-3.mp4")
    (coverage,) = (tmp_path / "hurt" / "coverage").glob("epoch-*.jsonl")
    assert json.loads(coverage.read_text(encoding="utf-8"))["became"] == "failed"
    steps = [line["shapes"] for line in children.debug_lines(tmp_path / "calm")]
    assert [line["shapes"] for line in children.debug_lines(tmp_path / "hurt")] == steps


def test_sigterm_saves_and_leaves_and_the_same_command_goes_on(tiny, tmp_path):
    def run_until_signal(max_steps: int) -> int:
        return children.in_child(_train_with_sigterm, tiny(train={"max_steps": max_steps}, **BARE))

    assert run_until_signal(40) == 75
    run = RunFolder(tmp_path / "run")
    stopped = list(events.read(run.events_file, "stop"))[-1]
    assert stopped["reason"] == "signal"
    assert (run.checkpoints_folder / f"step-{stopped['step']:09d}").is_dir()
    assert stopped["step"] < 40
    assert children.train(tiny(train={"max_steps": stopped["step"] + 1}, **BARE)) == [0]
    start = list(events.read(run.events_file, "start"))[-1]
    assert start["resumed_from"] == stopped["step"]


def _train_with_sigterm(recipe: dict) -> None:
    from reelworks.training.step.state import TrainState

    faults.at_call(TrainState, "update_ema", 3, faults.ask_to_leave)
    children.train_here(recipe)


SWITCHES = [
    ("token", 1),
    pytest.param("sample", 0, marks=pytest.mark.slow),
    pytest.param("micro_batch", 0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("loss_reduction", "num_workers"), SWITCHES)
def test_every_switch_of_the_trainer_trains(tiny, tmp_path, loss_reduction, num_workers):
    """bfloat16, recomputation, conditioning frames, accumulation, worker processes: all at once."""
    recipe = tiny(
        train={"max_steps": 3, "gradient_accumulation_steps": 2, "loss_reduction": loss_reduction},
        precision={"compute": "bfloat16"},
        model={"gradient_checkpointing": True},
        objective={"mask_ratios": {"image_head": 0.4, "random": 0.4}, "timestep_shift": "auto"},
        data={"num_workers": num_workers, "crop": "random"},
    )
    assert children.train(recipe) == [0]
    steps = list(events.read(RunFolder(tmp_path / "run").events_file, "step"))
    assert len(steps) == 3
    assert np.isfinite([step["loss"] for step in steps]).all()
    assert np.all(np.array([step["grad_norm"] for step in steps]) > 0)
    for step in steps:
        assert 0 < step["data_wait_seconds"] < step["seconds"]
        assert 0 < step["decode_p50_seconds"] <= step["decode_p99_seconds"]
        assert step["queue_bytes"] >= 0
    assert max(len(step["buckets"]) for step in steps) >= 2


def test_the_terminal_tells_the_throughput_of_the_events(tiny, tmp_path):
    """Validation, previews and saves are not in it."""
    recipe = tiny(train={"max_steps": 4})
    assert children.train(recipe) == [0]
    told = re.findall(r"step 4/4 .* ([\d.]+) clips/s", children.output(recipe))
    assert told == [f"{run_data.load(RunFolder(tmp_path / 'run')).speed.clips_per_second:.1f}"]


def test_a_finished_run_says_so(tiny, tmp_path):
    recipe = tiny(train={"max_steps": 1}, **BARE)
    assert children.train(recipe) == [0]
    assert children.train(recipe) == [0]
    assert "nothing left to train at step 1" in children.output(recipe)
    assert len(list(events.read(RunFolder(tmp_path / "run").events_file, "step"))) == 1
