"""With a bound on time, "auto" is the most clips that fit into memory and take no longer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from reelworks.analysis import plan_report
from reelworks.buckets import tuned
from reelworks.recipe import dataset, recipe_file
from reelworks.schedule.cost_fit import CostModel

TOKENS = {"480p ×81": 32_000, "480p ×1": 1600, "240p ×17": 2000}
MODEL = CostModel(per_batch=20, per_clip=1, per_token=0.05, per_token_squared=1e-6)


def written(folder: Path, sizes: dict[str, int], model: CostModel = MODEL) -> Path:
    """Write a file as `reelworks tune` does, as far as sizes and times go."""
    trials = [
        {"bucket": entry.replace(" ", " 16:9 "), "tokens": n, "batch_size": 1, "milliseconds": model.milliseconds(n, 1)}
        for entry, n in TOKENS.items()
    ]
    file = folder / "tuned.json"
    file.write_text(json.dumps({"batch_sizes": sizes, "trials": trials, "model_ms": dataclasses.asdict(model)}))
    return file


@given(st.lists(st.integers(0, 100), min_size=3, max_size=3), st.floats(0.001, 20))
def test_each_entry_has_the_most_clips_within_both_bounds(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], seconds: float
) -> None:
    sizes = dict(zip(TOKENS, numbers, strict=True))
    file = str(written(tmp_path_factory.mktemp("tuned"), sizes))
    assert tuned.read(file) == sizes
    for entry, size in tuned.read(file, seconds).items():
        within = [n for n in range(1, sizes[entry] + 1) if MODEL.milliseconds(TOKENS[entry], n) <= 1000 * seconds]
        assert size == max(within, default=min(sizes[entry], 1))


def test_a_run_keeps_the_numbers_in_place_of_the_bound(tmp_path: Path) -> None:
    file = written(tmp_path, dict.fromkeys(TOKENS, 100))
    recipe = recipe_file.parse(
        {
            "version": 1,
            "output": "unused",
            "dataset": [{"path": "not-there"}],
            "bucket": [{"resolution": "480p", "num_frames": [1, 81], "batch_size": "auto"}],
            "buckets": {"tuned": str(file)},
            "train": {"max_steps": 1, "step_seconds": 3.0},
        }
    )
    made = dataset.with_batch_sizes(recipe)
    # 20 + b · 83.56 ms, and one clip of 2645 ms.
    assert made.bucket[0].batch_size == [35, 1]
    assert made.train.step_seconds is None
    assert dataset.with_batch_sizes(made) == made
    assert plan_report.without_effect(made) == []
    given_numbers = made.model_copy(update={"train": recipe.train})
    assert any("train.step_seconds" in line for line in plan_report.without_effect(given_numbers))


@pytest.mark.parametrize("lost", ["model_ms", "trials"])
def test_a_file_without_times_is_named(tmp_path: Path, lost: str) -> None:
    file = written(tmp_path, dict.fromkeys(TOKENS, 4))
    value = json.loads(file.read_text())
    del value[lost]
    file.write_text(json.dumps(value))
    with refused("tuned-file-invalid", "buckets.tuned", says="not a file of measured"):
        tuned.read(str(file), 1.0)
