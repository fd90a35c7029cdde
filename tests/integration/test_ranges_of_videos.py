"""A training on ranges of long videos: each range is one clip, through an interruption and in coverage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import children
import media_makers
import numpy as np
import pytest

from reelworks.data.run.folder import RunFolder
from reelworks.training.coverage import clip_history
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData


def films(folder: Path) -> Path:
    """Two videos of 2.5 seconds with a caption each."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        frames = generator.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
        media_makers.write(folder / f"{name}.mp4", frames, options={"preset": "ultrafast", "crf": "14"})
        (folder / f"{name}.txt").write_text(f"film {name}", encoding="utf-8")
    return folder


@pytest.mark.slow
def test_an_interrupted_epoch_trains_each_range_once(tiny, tmp_path):
    recipe = tiny(
        dataset=[{"path": str(films(tmp_path / "films")), "clip_seconds": 0.25}],
        bucket=[{"resolution": "32px", "num_frames": 5, "batch_size": 2}],
        buckets={"aspect_ratios": ["1:1"], "incomplete_batch": "partial"},
        validation={"split": 0.0},
        train={"max_steps": 3},
    )
    assert children.train(recipe, debug=True) == [0]
    assert children.train(recipe | {"train": {"max_epochs": 1, "learning_rate": 1e-3}}, debug=True) == [0]
    run = tmp_path / "run"
    rows = RecipeData.open(recipe_file.load(run / "recipe.toml")).rows
    assert len(rows) == 20
    assert Counter(clip["uid"] for line in children.debug_lines(run) for clip in line["trained"]) == Counter(rows.uid)
    told = clip_history.cover(RunFolder(run))
    clips = told.report(told.places()).clips
    assert {epoch.became for clip in clips for epoch in clip.epochs} == {"trained"}
    assert len({clip.path for clip in clips}) == 20, "each range has a name of its own"


def test_the_ranges_of_a_video_are_held_out_and_excluded_together(tiny, tmp_path):
    recipe = tiny(
        dataset=[{"path": str(films(tmp_path / "films")), "clip_seconds": 0.25}],
        bucket=[{"resolution": "32px", "num_frames": 5, "batch_size": 2}],
    )

    def opened(**changes: object) -> RecipeData:
        made = recipe_file.parse(recipe | changes)
        dataset.scan_recipe(made)
        return RecipeData.open(made)

    split = [opened(seed=seed, validation={"split": 0.5}).clips()[0].held_out for seed in range(8)]
    assert {int(held.sum()) for held in split} <= {0, 10, 20}
    assert any(held.sum() == 10 for held in split)

    lines = tmp_path / "bad.txt"
    for text, count in (("films/a.mp4", 10), ("films/a.mp4[6:12]  # blurred", 1), ("films/a.mp4[6:13]", 0)):
        lines.write_text(text + "\n", encoding="utf-8")
        data = opened(exclude_file=str(lines))
        assert int(data.in_exclude_file.sum()) == count, text
        assert data.exclude_list.unmatched(data.rows) == ([] if count else [text])
