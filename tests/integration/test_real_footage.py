"""The whole road on photographs and clips that nobody made for us."""

from __future__ import annotations

import json
from pathlib import Path

import children
import numpy as np
import pytest
import real_footage
from PIL import Image

from reelworks.core import results
from reelworks.core.shape import Shape
from reelworks.data.media.decode import Request, load
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.plan import plan_forecast
from reelworks.training.recipe import dataset, recipe_file

RECIPE = Path(__file__).parents[2] / "recipes" / "real-footage.toml"


@pytest.mark.slow
def test_real_footage_is_scanned_planned_trained_and_generated_from(tmp_path, monkeypatch, capsys):
    footage = tmp_path / "footage"
    files = real_footage.gather(footage)
    changes = [
        f"dataset.0.path={json.dumps(str(footage))}",
        f"output={json.dumps(str(tmp_path / 'run'))}",
        "dataset.0.repeats=1",
        "train.max_steps=4",
        "train.threads=1",
        "data.num_workers=0",
        "validation.every_steps=100",
        "samples.prompts=[]",
    ]
    recipe = recipe_file.load(RECIPE, changes)
    scanned = dataset.scan_recipe(recipe)
    assert (scanned.found, scanned.bad) == (len(files), 0)
    told = results.as_json(plan_forecast.forecast(recipe, world=1))
    named = sum(len(entries) for entries in told["reasons"].values())
    assert told["planned"] + named == len(files) == 20
    assert told["planned"] >= 14
    assert any(bucket["num_frames"] == 17 for bucket in told["buckets"])
    values = json.loads(recipe.model_dump_json(exclude_none=True))
    assert children.train(values, debug=True) == [0]
    run = RunFolder(tmp_path / "run")
    losses = [event["loss"] for event in events.read(run.events_file, "step")]
    assert len(losses) == 4
    assert np.isfinite(losses).all()
    _generate(run.path, tmp_path, monkeypatch, capsys)


def _generate(run: Path, folder: Path, monkeypatch, capsys) -> None:
    from reelworks.commands.main import app

    clip, picture = folder / "out.mp4", folder / "out.png"
    common = ["generate", str(run), "--prompt", "a red flower", "--num-inference-steps", "3"]
    size = ["--height", "96", "--width", "64"]
    app([*common, *size, "--num-frames", "5", "-o", str(clip)], standalone_mode=False)
    app([*common, *size, "--num-frames", "1", "-o", str(picture)], standalone_mode=False)
    assert "step 4" in capsys.readouterr().out
    frames = load(Request(clip, False, Shape(5, 96, 64)))
    assert frames.std() > 1
    with Image.open(picture) as opened:
        assert opened.size == (64, 96)
