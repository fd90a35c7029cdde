"""Checkpoints as a run makes them: whose metrics they carry, going back, a full disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import children
import faults
import killing
import pytest

from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder

# Where only saves matter: little to audit, nothing to validate.
BARE = {"buckets": {"aspect_ratios": ["1:1"]}, "validation": {"split": 0.0}}


def losses(run: RunFolder) -> dict[int, str]:
    return {e["step"]: float(e["loss"]).hex() for e in events.timeline(run.events_file, "step")}


def test_a_checkpoint_carries_only_what_was_measured_at_its_step(tiny, tmp_path):
    recipe = tiny(
        train={"max_steps": 6},
        validation={"every_steps": 3},
        checkpoints={"every_steps": 2, "keep_last": 3, "keep_best": "none"},
    )
    assert children.train(recipe) == [0]
    infos = CheckpointFolder(tmp_path / "run" / "checkpoints").list()
    assert [info.step for info in infos] == [2, 4, 6]
    assert [bool(info.metrics) for info in infos] == [False, False, True]


def test_going_back_to_a_step_sets_the_later_ones_aside(tiny, tmp_path, capsys):
    recipe = tiny(train={"max_steps": 6}, checkpoints={"keep_last": 3}, **BARE)
    assert children.train(recipe) == [0]
    run = RunFolder(tmp_path / "run")
    first = losses(run)
    assert children.train(recipe, resume="2") == [0]
    assert "step 4 is set aside" in children.output(recipe)
    assert losses(run) == first, "the same recipe goes the same way again"
    names = sorted(path.name for path in run.checkpoints_folder.iterdir() if "step" in path.name)
    assert [name.rpartition("-")[0] for name in names[:2]] == [".aside-step-000000004", ".aside-step-000000006"]
    from reelworks.commands.main import app

    app(["checkpoints", "ls", str(run.path), "--json"], standalone_mode=False)
    listed = json.loads(capsys.readouterr().out)
    assert [one["step"] for one in listed] == [2, 4, 6]
    assert all(one["keep"] and one["reasons"] for one in listed)


def _fill_the_disk(recipe: dict) -> None:
    """Train while the second save finds no space."""
    from reelworks.data.checkpoint import disk_space

    def fail() -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    faults.at_call(disk_space, "require", 2, fail)
    children.train_here(recipe)


def test_a_full_disk_costs_one_checkpoint_and_not_the_run(tiny, tmp_path):
    recipe = tiny(train={"max_steps": 6}, checkpoints={"keep_last": 3}, **BARE)
    assert children.in_child(_fill_the_disk, recipe) == 0
    run = RunFolder(tmp_path / "run")
    assert CheckpointFolder(run.checkpoints_folder).steps() == [2, 6]
    (unsaved,) = events.read(run.events_file, "unsaved")
    assert unsaved["step"] == 4
    assert "no space left" in children.output(recipe)
    assert not list(run.checkpoints_folder.glob(".tmp-*"))


def test_an_older_checkpoint_that_is_damaged_is_in_nobody_s_way(tiny, tmp_path):
    """Training goes on from the newest, and leaves the damaged one as it is."""
    recipe = tiny(train={"max_steps": 4}, checkpoints={"keep_last": 9}, **BARE)
    assert children.train(recipe) == [0]
    cursor = tmp_path / "run" / "checkpoints" / "step-000000002" / "cursor.json"
    cursor.write_bytes(bytes(cursor.stat().st_size))
    assert children.train(tiny(train={"max_steps": 6}, checkpoints={"keep_last": 9}, **BARE)) == [0]
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").steps() == [2, 4, 6]


def flip(file: Path) -> None:
    """Change a bit, and neither size nor times."""
    before, data = file.stat(), bytearray(file.read_bytes())
    data[-9] ^= 4
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_bits_that_flipped_after_an_orderly_end_are_seen_while_loading(tiny, tmp_path):
    """In the tensors, their index and the cursor; a resume goes on from the newest good one, `--load` says which is bad."""
    recipe = tiny(train={"max_steps": 10}, checkpoints={"keep_last": 9}, **BARE)
    assert children.train(recipe) == [0]
    run = RunFolder(tmp_path / "run")
    first, store = losses(run), CheckpointFolder(run.checkpoints_folder)
    flip(store.path(10) / "cursor.json")
    flip(store.path(8) / "tensors" / "rank-00000.safetensors")
    flip(store.path(6) / "state.json")
    flip(store.path(4) / "cursor.json")
    other = tiny(train={"max_steps": 12}, checkpoints={"keep_last": 9}, **BARE) | {"output": str(tmp_path / "other")}
    assert children.train(other, load=store.path(8)) != [0]
    assert "tensors/rank-00000.safetensors has changed since it was written" in children.output(other)
    assert children.train(recipe) == [0]
    said = children.output(recipe)
    assert "resumed from step 2, " in said
    bad = ((10, "cursor.json"), (8, "tensors/rank-00000.safetensors"), (6, "state.json"), (4, "cursor.json"))
    for step, file in bad:
        assert f"checkpoint of step {step} is skipped: {file} has changed" in said
    assert losses(run) == first
    assert len(list(run.checkpoints_folder.glob(".bad-*"))) == 3  # more of them are not kept
    assert store.steps() == [2, 4, 6, 8, 10]


@pytest.fixture(scope="module")
def trained(tiny_in, tmp_path_factory):
    """The recipe of a run of two steps, which stays as it is."""
    recipe = tiny_in(tmp_path_factory.mktemp("trained"), train={"max_steps": 2}, **BARE)
    assert children.train(recipe) == [0]
    return recipe


@pytest.mark.parametrize("resume", ["3", "never", "soon", "²"])
def test_a_resume_that_cannot_be_is_refused(trained, resume):
    store = CheckpointFolder(Path(trained["output"]) / "checkpoints")
    assert children.train(trained, resume=resume) != [0]
    assert "remedy" in children.output(trained)
    assert store.steps() == [2]


def test_the_last_checkpoint_knows_its_loss_and_what_a_kill_left_undone_is_done(tiny, tmp_path):
    """The end falls on a save and not on a validation; the run dies right behind that save."""
    recipe = tiny(
        train={"max_steps": 4},
        validation={"every_steps": 3},
        samples={"prompts": ["a clip"], "height": 32, "width": 32, "num_frames": 1, "num_inference_steps": 2},
    )
    assert children.train(recipe, fault=("after the commit's rename", 2)) == [killing.SELF_KILLED]
    run = RunFolder(tmp_path / "run")
    (last,) = [info for info in CheckpointFolder(run.checkpoints_folder).list() if info.step == 4]
    assert last.metrics.keys() == {"validation/loss"}
    assert not list(run.samples_folder.iterdir())
    assert children.train(recipe) == [0]
    assert "nothing left to train at step 4; raise train.max_steps" in children.output(recipe)
    assert [path.name for path in run.samples_folder.rglob("*.png")] == ["00.png"]


def test_another_shape_of_the_step_is_taken_over_in_mid_epoch(tiny, tmp_path):
    """The step's shape is the recipe's to change; the number of processes alone changes nothing."""
    recipe = tiny(train={"max_epochs": 1, "max_steps": 2}, validation={"split": 0.0})
    assert children.train(recipe, debug=True) == [0]
    recipe = tiny(train={"max_epochs": 1, "gradient_accumulation_steps": 3}, validation={"split": 0.0})
    recipe["train"].pop("max_steps")
    assert children.train(recipe, debug=True) == [0]
    assert "train.gradient_accumulation_steps: 1 then, 3 now" in children.output(recipe)
    clips = [c["uid"] for line in children.debug_lines(tmp_path / "run") for c in line["trained"]]
    assert len(clips) == len(set(clips)) == 17
    (account,) = events.read(RunFolder(tmp_path / "run").events_file, "epoch_end")
    assert (account["planned"], account["trained"]) == (17, 17)


@pytest.mark.slow
def test_epochs_that_draw_no_clip_are_passed_over(tiny, tmp_path):
    recipe = tiny(
        bucket=[{"resolution": "32px", "num_frames": [1, 5], "batch_size": [9, 9], "keep_prob": [0.06, 0.06]}],
        validation={"split": 0.0},
        train={"max_epochs": 12},
    )
    recipe["train"].pop("max_steps")
    assert children.train(recipe, debug=True) == [0]
    told = children.output(recipe)
    assert "no clip was drawn" in told
    ends = list(events.read(RunFolder(tmp_path / "run").events_file, "epoch_end"))
    assert all(end["planned"] == end["trained"] > 0 for end in ends)
    drawn = [end["epoch"] for end in ends]
    assert max(drawn) < 12
    # The same ones, wherever the run is made to end; with a checkpoint and its loss behind the last.
    for epochs in (1, 2, 6):
        short = {**recipe, "output": str(tmp_path / f"short-{epochs}"), "train": {**recipe["train"]}}
        short["train"]["max_epochs"] = epochs
        expected = [epoch for epoch in drawn if epoch < epochs]
        codes = children.train(short)
        if not expected:
            assert codes != [0]
            assert "no clip that fits a bucket is drawn" in children.output(short)
            continue
        run = RunFolder(Path(short["output"]))
        assert codes == [0]
        assert [e["epoch"] for e in events.read(run.events_file, "epoch_end")] == expected
        assert next(events.read(run.events_file, "stop"))["reason"] == "finished"
        steps = [e["step"] for e in events.read(run.events_file, "step")]
        assert CheckpointFolder(run.checkpoints_folder).steps()[-1] == steps[-1]
