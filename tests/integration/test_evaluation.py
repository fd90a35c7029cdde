"""`reelworks eval` on runs, checkpoints, recipes and other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
import tomli_w

from reelworks.core.errors import UserError
from reelworks.evaluation import held_out
from reelworks.evaluation.held_out import Evaluation, Source
from reelworks.recipe import recipe_file
from reelworks.run import events
from reelworks.run.folder import RunFolder


def measured(
    path: Path, *, timesteps: list[float] | None = None, at_once: int | None = None, **which: Any
) -> Evaluation:
    source = Source.locate(path, **which).measuring(timesteps=timesteps, max_clips=None)
    return held_out.evaluate(source, times_at_once=at_once)


def trained(tiny: Any, tmp_path: Path) -> tuple[RunFolder, dict[int, dict[str, Any]], dict[str, Any]]:
    """Train four steps; returns the run, its validations by step, and the recipe."""
    recipe = tiny(train={"max_steps": 4}, validation={"every_steps": 2, "split": 0.3})
    assert children.train(recipe) == [0], children.output(recipe)
    run = RunFolder(tmp_path / "run")
    return run, {event["step"]: event for event in events.timeline(run.events_file, "validation")}, recipe


def test_a_checkpoint_has_the_loss_that_training_measured(tiny: Any, tmp_path: Path) -> None:
    run, told, _ = trained(tiny, tmp_path)
    newest = measured(run.path)
    assert newest.validation.loss == told[4]["loss"]
    assert newest.validation.loss_by_time == told[4]["loss_by_time"]
    by_bucket = newest.validation.by_bucket
    assert {name: of.loss for name, of in by_bucket.items()} == told[4]["loss_by_bucket"]
    assert sum(of.clips for of in by_bucket.values()) == newest.validation.clips == newest.clips > 2

    ten = held_out.spread(newest.source.recipe, 10)
    np.testing.assert_allclose(ten, np.linspace(0, 1000, 12)[1:-1])
    together, apart = (measured(run.path, timesteps=ten, at_once=n) for n in (None, 3))
    found = [list(each.validation.loss_by_time.values()) for each in (together, apart)]
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert len(found[0]) == 10
    (file,) = held_out.write(together, None)
    assert json.loads(file.read_text())["loss_by_time"] == together.validation.loss_by_time
    assert held_out.write(apart, None) == [file]
    assert held_out.write(newest, None) != [file]  # another question has another file


@pytest.mark.slow
def test_checkpoints_by_name_other_clips_and_the_weights_before_training(
    tiny: Any, tmp_path: Path, footage: Path
) -> None:
    run, told, recipe = trained(tiny, tmp_path)
    assert measured(run.path, step=2).validation.loss == told[2]["loss"]
    assert measured(run.path / "checkpoints" / "step-000000002").validation.loss == told[2]["loss"]
    best = min((2, 4), key=lambda step: told[step]["loss"])
    assert measured(run.path, best=True).source.step == best
    assert measured(run.path, averaged=False).validation.loss not in {event["loss"] for event in told.values()}

    catalog = (run.path / "catalog" / "catalog.json").read_bytes()
    everything = measured(run.path, data_path=footage)
    assert everything.clips == 17  # with those that were trained
    assert (run.path / "catalog" / "catalog.json").read_bytes() == catalog

    written = tmp_path / "recipe.toml"
    written.write_text(tomli_w.dumps({**recipe, "output": str(tmp_path / "other")}))
    untrained = measured(written)
    assert untrained.validation.loss == told[0]["loss"]
    assert untrained.file() is None
    assert not (tmp_path / "other" / "run.json").exists()
    with pytest.raises(UserError) as refused:
        measured(run.path, step=3)
    assert refused.value.code == "no-such-checkpoint"
    with pytest.raises(UserError) as refused:
        measured(run.path, overrides=["model.depth=2"])
    assert refused.value.code == "setting-of-a-checkpoint"


def test_a_recipe_without_held_out_clips_names_the_way_out(tiny: Any, tmp_path: Path) -> None:
    written = tmp_path / "recipe.toml"
    written.write_text(recipe_file.dump(recipe_file.parse(tiny(validation={"split": 0.0}))))
    with pytest.raises(UserError, match="--data-path"):
        measured(written)
    with pytest.raises(UserError, match="no checkpoints"):
        measured(written, best=True)
