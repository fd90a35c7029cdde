"""The costs of a recipe's buckets, fitted to the steps of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_recipe
from refused import refused
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.core import gpus
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule import cost
from reelworks.data.schedule.cost_fit import BatchTime, CostModel
from reelworks.training.memory.tune_request import TuneRequest
from reelworks.training.plan import epoch_stats, refit
from reelworks.training.recipe import origin, recipe_file

WORLD, PER_STEP = 2, 4
TRUE = CostModel(per_batch=5.0, per_clip=2.0, per_token=0.3, per_token_squared=0.002)
RECIPE: dict[str, Any] = tiny_recipe.least(
    bucket=[{"resolution": "64px", "num_frames": [1, 5, 9, 17], "batch_size": [4, 2, 2, 1]}],
    buckets={"aspect_ratios": ["1:1"]},
    model={"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
    autoencoder={"stride": 8},
    train={"max_steps": 1, "threads": 1},
)
TOKENS = {1: 16, 5: 80, 9: 144, 17: 272}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_file.dump(recipe_file.parse(RECIPE)), encoding="utf-8")
    return path


def trained(folder: Path, steps: list[list[tuple[int, int]]], slow: dict[int, float] | None = None) -> Path:
    """Write the events of a run whose micro-batches take what `TRUE` says, or a multiple; steps name frames and clips."""
    run = RunFolder(folder)
    run.create()
    log = EventLog(run.events_file)
    kept = run.keep_recipe(recipe_file.dump(recipe_file.parse(RECIPE)))
    begun = {"device": "NVIDIA H100 PCIe", "recipe": kept, "resumed_from": None}
    log.write("start", step=0, world_size=WORLD, micro_batches_per_step=PER_STEP, **begun)
    for number, batches in enumerate(steps, 1):
        clips = sum(size for _, size in batches) * PER_STEP // len(batches)
        times = [(slow or {}).get(frames, 1) * TRUE.milliseconds(TOKENS[frames], size) for frames, size in batches]
        ms = sum(times) / len(batches)
        names = [f"64px 1:1 ×{frames}" for frames, _ in batches]
        seconds = (ms * PER_STEP / WORLD + 40) / 1000
        if number == 1:
            seconds *= 30  # the first step compiles
        values = {"clips": clips - 1, "repeated": 1, "seconds": seconds, "data_wait_seconds": 0.04, "buckets": names}
        values |= {"micro_batches": PER_STEP, "batch_sizes": sorted({size for _, size in batches})}
        log.write("step", step=number, **values)
    return folder


def test_costs_are_those_of_the_run_and_of_a_fit_for_what_it_did_not_train(recipe: Path, tmp_path: Path) -> None:
    # No step trains 17 frames alone, and mixed steps tell nothing about one bucket.
    steps = [[(5, 2)], [(1, 4)], [(1, 4)], [(1, 2)], [(5, 2)], [(9, 2)], [(9, 1)], [(5, 2), (17, 1)]]
    run = trained(tmp_path / "run", steps)
    done = CliRunner().invoke(app, ["tune", str(recipe), "--from-run", str(run), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    written = recipe.with_suffix(".costs.json")
    assert json.loads(written.read_text(encoding="utf-8")) == found
    assert {(m["bucket"], m["batch_size"], m["steps"]) for m in found["measured"]} == {
        ("64px 1:1 ×1", 4, 2),
        ("64px 1:1 ×1", 2, 1),
        ("64px 1:1 ×5", 2, 1),
        ("64px 1:1 ×9", 2, 1),
        ("64px 1:1 ×9", 1, 1),
    }
    names = [f"64px 1:1 ×{frames}" for frames in TOKENS]
    for name, (frames, tokens), size in zip(names, TOKENS.items(), (4, 2, 2, 1), strict=True):
        time = BatchTime(**found["costs_ms"][name])
        assert time.milliseconds(size) == pytest.approx(TRUE.milliseconds(tokens, size), rel=0.01), frames
        assert time.milliseconds(2 * size) == pytest.approx(TRUE.milliseconds(tokens, 2 * size), rel=0.02), frames
        assert cost.read_measured(str(written), names)[name] == time
    shown = CliRunner().invoke(app, ["tune", str(recipe), "--from-run", str(run)], catch_exceptions=False).output
    assert "cost.measured" in shown
    assert "64px 1:1 ×9" in shown


def test_a_bucket_costs_what_most_of_its_steps_took_whatever_the_fit_says(recipe: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", [[(1, 4)], [(5, 2)], [(9, 2)]] * 3 + [[(9, 1)]], slow={5: 3.0})
    done = CliRunner().invoke(app, ["tune", str(recipe), "--from-run", str(run), "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    for measured in (each for each in found["measured"] if each["steps"] > 1):
        time = BatchTime(**found["costs_ms"][measured["bucket"]])
        assert time.milliseconds(measured["batch_size"]) == pytest.approx(measured["milliseconds"]), measured["bucket"]


@pytest.mark.parametrize("command", ["tune", "report"])
def test_times_of_a_run_are_of_its_gpu_and_network_whatever_recipe_they_are_fitted_to(
    recipe: Path, tmp_path: Path, command: str
) -> None:
    run, file = trained(tmp_path / "run", [[(1, 4)], [(1, 4)], [(5, 2)], [(9, 2)]]), tmp_path / "costs.json"
    if command == "tune":
        overrides = ("model.depth=2",)
        refit.refit(TuneRequest(recipe=recipe, from_run=run, out=file, overrides=overrides))
    else:
        epoch_stats.write_costs(file, RunFolder(run), epoch_stats.measure_costs(RunFolder(run)))
    own = recipe_file.load(recipe, (f"cost.measured={file}",))
    assert origin.is_of(own, gpus.GPUS["H100 PCIe"])
    assert not any(origin.is_of(own, gpu) for gpu in (gpus.GPUS["H100"], gpus.GPUS["L4"], None))
    assert origin.lines(own) == []
    other = recipe_file.load(
        recipe, (f"cost.measured={file}", f"buckets.tuned={file}", "model.depth=2", "train.compile=true")
    )
    assert not origin.is_of(other, gpus.GPUS["H100 PCIe"])
    (line,) = origin.lines(other)
    assert "measured with model.depth = 1, which is 2 here, train.compile = false, which is true here;" in line


def test_a_run_without_a_step_of_one_bucket_measures_nothing(recipe: Path, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", [[(1, 4)], [(5, 2), (17, 1)]])
    with refused("no-measured-cost", "from_run", says="no step from which"):
        refit.refit(TuneRequest(recipe=recipe, from_run=run))


def test_the_largest_error_of_the_fit_is_told_whatever_its_sign(recipe: Path, tmp_path: Path) -> None:
    """A length that takes longer than the others say is predicted too short, and by it another one a little too long."""
    run = trained(tmp_path / "run", [[(frames, size)] for frames in (1, 1, 5, 9, 17) for size in (1, 2)])
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if line.get("buckets") == ["64px 1:1 ×17"]:
            line["seconds"] *= 2
    (run / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    asked = ["tune", str(recipe), "--from-run", str(run)]
    errors = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["held_out_errors"].values()
    worst = max(errors, key=abs)
    assert worst < 0 < max(errors) < -worst
    assert f"off by {worst:+.0%} at most" in CliRunner().invoke(app, asked).output
