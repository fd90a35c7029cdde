"""A run whose disk is lost goes on from its mirror, as if nothing had happened."""

from __future__ import annotations

import shutil

import children

from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder


def test_the_same_command_goes_on_on_a_fresh_disk(tiny, tmp_path):
    mirror = {"url": str(tmp_path / "mirror"), "keep_last": 1}
    whole = tiny("whole", train={"max_steps": 7})
    begun = tiny(train={"max_steps": 4}, checkpoints={"every_steps": 2, "keep_last": 2, "mirror": mirror})
    assert children.train(whole) == [0]
    assert children.train(begun) == [0]
    shutil.rmtree(tmp_path / "run")
    begun["train"]["max_steps"] = 7
    assert children.train(begun) == [0]
    run = RunFolder(tmp_path / "run")
    assert list(events.read(run.events_file, "start"))[-1]["resumed_from"] == 4
    losses = [
        [e["loss"] for e in events.timeline(RunFolder(tmp_path / name).events_file, "step")]
        for name in ("whole", "run")
    ]
    assert losses[0] == losses[1]
    digests = [
        {f.path: f.digest for f in CheckpointFolder(tmp_path / name / "checkpoints").info(7).manifest.files
         if f.path.endswith(".safetensors")}
        for name in ("whole", "run")
    ]  # fmt: skip
    assert digests[0] == digests[1]
    assert [p.name for p in (tmp_path / "mirror" / "checkpoints").glob("step-*")] == ["step-000000007"]


def test_going_back_on_a_fresh_disk_sets_the_later_checkpoint_aside_in_the_mirror(tiny, tmp_path):
    recipe = tiny(checkpoints={"every_steps": 2, "mirror": {"url": str(tmp_path / "mirror")}})
    for steps, options in ((2, {}), (4, {}), (3, {"resume": "2"})):
        if options:
            shutil.rmtree(tmp_path / "run")
        recipe["train"]["max_steps"] = steps
        assert children.train(recipe, **options) == [0]
    names = {f.parent.name: f.name for f in (tmp_path / "mirror" / "checkpoints").glob("step-*/manifest*")}
    assert names == {
        "step-000000002": "manifest.json",
        "step-000000003": "manifest.json",
        "step-000000004": "manifest.abandoned.json",
    }


def test_a_mirror_that_does_not_answer_ends_no_training(tiny, tmp_path):
    mirror = {"url": str(tmp_path / "mirror")}
    recipe = tiny(train={"max_steps": 2}, checkpoints={"every_steps": 2, "mirror": mirror})
    assert children.in_child(_lose_the_mirror, recipe) == 0
    assert "warning" in children.output(recipe)
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").steps() == [2]


def _lose_the_mirror(recipe: dict) -> None:
    """The mirror's disk fills up with the first copy, and no pause helps."""
    import errno
    import os

    from reelworks.data.checkpoint.mirror import mirror
    from reelworks.data.checkpoint.mirror.remote import RemoteFilesystem
    from reelworks.training.loop.request import TrainRequest
    from reelworks.training.loop.trainer import run
    from reelworks.training.recipe import recipe_file

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    RemoteFilesystem.put = full
    mirror.WAITS_SECONDS = (0.0,)
    os._exit(run(recipe_file.parse(recipe), TrainRequest()))
