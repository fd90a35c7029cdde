"""`reelworks tune` measures in a process that may run out of memory, and plans use what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_recipe
from refused import refused
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.data.buckets import tuned
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.training.recipe import dataset, measured, recipe_file

RECIPE = tiny_recipe.least(
    bucket=[
        {"resolution": "32px", "num_frames": [1, 5], "batch_size": "auto"},
        {"resolution": "2048px", "num_frames": 17, "batch_size": "auto"},
    ],
    buckets={"aspect_ratios": ["1:1"]},
    model={"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
    text_encoder={"dim": 16, "max_length": 6},
    train={"max_steps": 1, "threads": 1},
)


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_file.dump(recipe_file.parse(RECIPE)), encoding="utf-8")
    return path


@pytest.mark.slow(reason="trials that run out of memory; test_tuning_search has what is made of them")
def test_what_does_not_fit_is_survived_and_the_rest_is_used(recipe: Path) -> None:
    found = run("tune", str(recipe), "--memory", "1.2", "--max-batch", "3")
    # A clip of 2048 px × 17 has 17 million latent numbers, and some 40 arrays of them are needed at once.
    assert found["batch_sizes"] == {"32px ×1": 3, "32px ×5": 3, "2048px ×17": 0}
    by_size = {(t["bucket"], t["batch_size"]): t for t in found["trials"]}
    assert {size for bucket, size in by_size if bucket == "32px 1:1 ×5"} == {1, 2, 3}
    assert all(t["milliseconds"] > 0 and t["peak_bytes"] > 1e8 for t in found["trials"])
    assert set(found["costs_ms"]) == {"32px 1:1 ×1", "32px 1:1 ×5", "2048px 1:1 ×17"}
    written = recipe.with_suffix(".tuned.json")
    assert json.loads(written.read_text(encoding="utf-8")) == found

    keys = {"tuned": str(written), "aspect_ratios": ["1:1"]}
    with refused("batch-size-not-measured", "buckets.tuned", says="not even one clip of 2048px ×17"):
        measured.with_numbers(recipe_file.parse(RECIPE | {"buckets": keys}))
    fixed = recipe_file.parse(RECIPE | {"buckets": keys, "bucket": RECIPE["bucket"][:1]})  # type: ignore[index]
    assert measured.with_numbers(fixed).bucket[0].batch_size == [3, 3]


@pytest.mark.slow(reason="a process that runs out of memory as it begins")
def test_a_network_without_memory_of_its_own_is_told(recipe: Path) -> None:
    done = CliRunner().invoke(app, ["tune", str(recipe), "--memory", "0.2"])
    assert getattr(done.exception, "code", None) == "out-of-memory"
    assert "memory does not suffice for the network" in str(done.exception)


@pytest.mark.slow
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


def test_memory_is_given_in_the_gigabytes_that_are_told(recipe: Path) -> None:
    """Of 10⁹ bytes, as by `check` and `plan`, and with its fraction."""
    entry = 'bucket=[{resolution="32px", num_frames=1, batch_size="auto"}]'
    found = run("tune", str(recipe), "--estimate", "--memory", "1.5", "--max-batch", "1", "--set", entry)
    assert found["limits"]["memory_bytes"] == 1_500_000_000


@pytest.mark.slow
def test_an_entry_gets_the_recomputation_with_which_a_clip_takes_the_least_time(recipe: Path) -> None:
    """By what was computed that is none, but where a clip fits with recomputation alone; the recipe takes it over."""
    entries = 'bucket=[{resolution="64px", num_frames=1, batch_size="auto"}, {resolution="512px", num_frames=17, batch_size="auto"}]'
    deep = ("--set", entries, "--set", "model.depth=5")
    auto = (*deep, "--set", 'model.gradient_checkpointing="auto"')
    plain = run("tune", str(recipe), "--estimate", "--memory", "1.4", "--max-batch", "1", *deep)
    found = run("tune", str(recipe), "--estimate", "--memory", "1.4", "--max-batch", "1", *auto)
    assert plain["recomputation"] == {}
    assert plain["batch_sizes"]["512px ×17"] == 0 < found["batch_sizes"]["512px ×17"]
    assert found["recomputation"]["64px ×1"] is False
    assert found["recomputation"]["512px ×17"] in ("selective", True)
    overrides = [*auto[1::2], f"buckets.tuned={json.dumps(str(recipe.with_suffix('.tuned.json')))}"]
    taken = measured.with_numbers(recipe_file.load(recipe, overrides))
    assert taken.buckets.gradient_checkpointing == found["recomputation"]
    named = measured.with_numbers(
        recipe_file.load(recipe, [*overrides, 'buckets.gradient_checkpointing={"64px ×1" = 0.5}'])
    )
    assert named.buckets.gradient_checkpointing == found["recomputation"] | {"64px ×1": 0.5}


@pytest.mark.slow
def test_one_file_serves_all_stages(tmp_path: Path) -> None:
    """Every bucket of every stage has its batch size and its time in it."""
    small, large = ({"resolution": f"{side}px", "num_frames": [1], "batch_size": "auto"} for side in (32, 64))
    stages = [{"name": name, "steps": 1, "bucket": own} for name, own in (("small", [small]), ("both", [large, small]))]
    values = RECIPE | {"stage": stages, "bucket": [small]}
    file = tmp_path / "recipe.toml"
    file.write_text(recipe_file.dump(recipe_file.parse(values)), encoding="utf-8")
    found = run("tune", str(file), "--estimate", "--memory", "1.2", "--max-batch", "2")
    assert found["batch_sizes"] == {"32px ×1": 2, "64px ×1": 2}
    written = json.dumps(str(file.with_suffix(".tuned.json")))
    named = recipe_file.load(file, [f"{key}={written}" for key in ("buckets.tuned", "cost.measured")])
    for stage in recipe_file.each_stage(named):
        _, table = dataset.bucket_table(stage)
        assert found["costs_ms"].keys() >= {bucket.name for bucket in table.buckets}


@pytest.mark.slow
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
        file.write_text(text, encoding="utf-8")
    entry = BucketEntryConfig(resolution="32px", num_frames=1, batch_size="auto")
    with refused("tuned-file-invalid", "buckets.tuned", says=says):
        tuned.measured([entry], BucketsConfig(tuned=str(file)))
    with refused("batch-size-not-measured", "buckets.tuned", says="names no file"):
        tuned.measured([entry], BucketsConfig())


@pytest.mark.slow
def test_ranks_share_what_one_has_no_room_for(tmp_path: Path) -> None:
    """From an estimate for a small GPU to numbers in the recipe; the same file gives a larger GPU no reason to share."""
    file = tmp_path / "recipe.toml"
    entries = [
        {"resolution": "64px", "num_frames": [1, 5], "batch_size": "auto"},
        {"resolution": "512px", "num_frames": 33, "batch_size": "auto"},
    ]
    heads = {"name": "stdit3-tiny", "hidden_size": 64, "depth": 2, "num_heads": 4}
    keys = {"tuned": str(file.with_suffix(".tuned.json")), "aspect_ratios": ["1:1"]}
    values = RECIPE | {"bucket": entries, "buckets": keys, "model": heads, "parallel": {"sequence_degree": "auto"}}
    recipe = recipe_file.parse(values)
    assert recipe.parallel.max_sequence_degree == 4  # as many as divide the heads
    file.write_text(recipe_file.dump(recipe), encoding="utf-8")
    found = run("tune", str(file), "--estimate", "--memory", "1.4", "--max-batch", "16")
    assert found["batch_sizes"]["512px ×33"] == 0
    shared = measured.with_numbers(recipe)
    assert [entry.sequence_degree for entry in shared.bucket] == [[1, 1], 4]
    assert shared.bucket[0].batch_size == [found["batch_sizes"]["64px ×1"], found["batch_sizes"]["64px ×5"]]
    assert shared.parallel.sequence_degree == 4
    assert measured.with_numbers(shared) == shared
    small = recipe_file.parse(values | {"parallel": {"sequence_degree": "auto", "max_sequence_degree": 1}})
    with refused("no-degree-fits", "parallel.max_sequence_degree", says="not even one clip of 512px ×33"):
        measured.with_numbers(small)
    run("tune", str(file), "--estimate", "--memory", "80", "--max-batch", "16")
    assert [entry.sequence_degree for entry in measured.with_numbers(recipe).bucket] == [[1, 1], 1]
