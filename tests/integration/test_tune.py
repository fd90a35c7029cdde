"""`reelworks tune` measures in a process that may run out of memory, and plans use what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refused import refused
from typer.testing import CliRunner

from reelworks.buckets import tuned
from reelworks.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.cli.main import app
from reelworks.recipe import dataset, recipe_file

RECIPE = {
    "version": 1,
    "output": "unused",
    "dataset": [{"path": "not-there"}],
    "bucket": [
        {"resolution": "32px", "num_frames": [1, 5], "batch_size": "auto"},
        {"resolution": "2048px", "num_frames": 17, "batch_size": "auto"},
    ],
    "buckets": {"aspect_ratios": ["1:1"]},
    "model": {"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
    "text_encoder": {"dim": 16, "max_length": 6},
    "train": {"max_steps": 1, "threads": 1},
}


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_file.dump(recipe_file.parse(RECIPE)))
    return path


@pytest.mark.slow(reason="trials that run out of memory; test_tuning_search has what is made of them")
def test_what_does_not_fit_is_survived_and_the_rest_is_used(recipe: Path) -> None:
    found = run("tune", str(recipe), "--memory", "1.2", "--max-batch", "3")
    # A clip of 2048 px × 17 has 17 million latent numbers, and some 40 arrays of them are needed at once.
    assert found["batch_sizes"] == {"32px ×1": 3, "32px ×5": 3, "2048px ×17": 0}
    by_size = {(t["bucket"], t["batch_size"]): t for t in found["trials"]}
    assert {size for bucket, size in by_size if bucket == "32px 1:1 ×5"} == {1, 2, 3}
    assert all(t["milliseconds"] > 0 and t["peak_bytes"] > 1e8 for t in found["trials"])
    assert set(found["ms_per_clip"]) == {"32px 1:1 ×1", "32px 1:1 ×5"}
    written = recipe.with_suffix(".tuned.json")
    assert json.loads(written.read_text()) == found

    keys = {"tuned": str(written), "aspect_ratios": ["1:1"]}
    with refused("batch-size-not-measured", "buckets.tuned", says="not even one clip of 2048px ×17"):
        dataset.with_batch_sizes(recipe_file.parse(RECIPE | {"buckets": keys}))
    fixed = recipe_file.parse(RECIPE | {"buckets": keys, "bucket": RECIPE["bucket"][:1]})  # type: ignore[index]
    assert dataset.with_batch_sizes(fixed).bucket[0].batch_size == [3, 3]


def test_limits_on_an_estimate_hold(recipe: Path) -> None:
    entry = 'bucket=[{resolution="256px", num_frames=17, batch_size="auto"}]'
    few, more = (
        run("tune", str(recipe), "--estimate", "--memory", gb, "--max-batch", "64", "--set", entry)
        for gb in ("1.5", "3")
    )
    few_clips, more_clips = (found["batch_sizes"]["256px ×17"] for found in (few, more))
    assert 1 <= few_clips < more_clips < 64
    peaks = {t["batch_size"]: t["peak_bytes"] for t in more["trials"]}
    assert peaks[more_clips] <= 3e9 < peaks[more_clips + 1]


def test_no_entry_fits(recipe: Path) -> None:
    done = CliRunner().invoke(app, ["tune", str(recipe), "--estimate", "--memory", "0.2"])
    assert getattr(done.exception, "code", None) == "out-of-memory"


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "not a file"), ("[1]", "not a file"), ('{"batch_sizes": {"32px ×1": -1}}', "-1"), (None, "cannot be read")],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "tuned.json"
    if text is not None:
        file.write_text(text)
    entry = BucketEntryConfig(resolution="32px", num_frames=1, batch_size="auto")
    with refused("tuned-file-invalid", "buckets.tuned", says=says):
        tuned.measured([entry], BucketsConfig(tuned=str(file)))
    with refused("batch-size-not-measured", "buckets.tuned", says="names no file"):
        tuned.measured([entry], BucketsConfig())
