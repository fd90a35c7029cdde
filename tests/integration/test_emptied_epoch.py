"""An epoch whose remaining clips are gone when training goes on ends there, with its account."""

from __future__ import annotations

import shutil

import children
import pytest

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.coverage import clip_history


@pytest.mark.parametrize("max_epochs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_epoch_that_is_emptied_in_its_middle_is_accounted_for(tiny, footage, tmp_path, max_epochs):
    """What was trained until then is all that it planned, whether another epoch follows or not."""
    data = shutil.copytree(footage, tmp_path / "data")
    recipe = tiny(dataset=[{"path": str(data)}], validation={"split": 0.0})
    recipe["train"]["max_steps"] = 2
    assert children.train(recipe) == [0]
    run = RunFolder(tmp_path / "run")
    before = clip_history.cover(run)
    (epoch,) = before.epochs
    for path in before.paths(before.places(never_trained=True)):
        (tmp_path / path).unlink()
    del recipe["train"]["max_steps"]
    recipe["train"]["max_epochs"] = max_epochs
    assert children.train(recipe) == [0]
    accounts = list(events.read(run.events_file, "epoch_end"))
    done = epoch.counts["trained"]
    assert [(one["epoch"], one["planned"], one["trained"]) for one in accounts] == [
        (number, done, done) for number in range(max_epochs)
    ]
    assert f"epoch 0: {done} planned = {done} trained" in children.output(recipe)
    assert all(one.available and one.adds_up for one in clip_history.cover(run).epochs)
