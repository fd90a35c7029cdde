"""With a bound on time, "auto" is the most clips that fit into memory and take no longer."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_recipe
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from reelworks.core.errors import UserError
from reelworks.data.buckets import tuned
from reelworks.data.schedule.cost_fit import BatchTime, CostModel
from reelworks.testing import sample_catalog
from reelworks.training.plan import idle_keys
from reelworks.training.recipe import dataset, measured, recipe_file
from reelworks.training.recipe.recipe import Recipe

TOKENS = {"480p ×81": 32_000, "480p ×1": 1600, "240p ×17": 2000}
MODEL = CostModel(per_batch=20, per_clip=1, per_token=0.05, per_token_squared=1e-6)

FIXED, PER_TOKEN = 8_000_000_000, 240_000


def written(folder: Path, sizes: dict[str, int], model: CostModel = MODEL) -> Path:
    """Write a file as `reelworks tune` does, as far as sizes and times go."""
    trials = [
        {
            "bucket": entry.replace(" ", " 16:9 "),
            "tokens": n,
            "batch_size": 1,
            "milliseconds": model.milliseconds(n, 1),
            "peak_bytes": FIXED + PER_TOKEN * n,
        }
        for entry, n in TOKENS.items()
        if sizes.get(entry, 1)  # what memory does not allow is not measured
    ]
    limits = {"memory_bytes": 24_000_000_000, "milliseconds": None, "clips": 100}
    value = {"batch_sizes": sizes, "trials": trials, "model_ms": dataclasses.asdict(model), "limits": limits}
    file = folder / "tuned.json"
    file.write_text(json.dumps(value), encoding="utf-8")
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
        tiny_recipe.least(
            bucket=[{"resolution": "480p", "num_frames": [1, 81], "batch_size": "auto"}],
            buckets={"tuned": str(file)},
            train={"max_steps": 1, "step_seconds": 3.0},
        )
    )
    assert tuned.unmeasured(recipe.bucket, recipe.buckets)[0][0].batch_size == [1, 1]
    made = measured.with_numbers(recipe)
    # 20 + b · 83.56 ms, and one clip of 2645 ms.
    assert made.bucket[0].batch_size == [35, 1]
    assert made.train.step_seconds is None
    assert measured.with_numbers(made) == made
    assert idle_keys.lines(made) == []
    given_numbers = made.model_copy(update={"train": recipe.train})
    assert any("train.step_seconds" in line for line in idle_keys.lines(given_numbers))


def test_what_a_recipe_says_of_recomputation_wins_over_what_was_measured(tmp_path: Path) -> None:
    file = written(tmp_path, dict.fromkeys(TOKENS, 100))
    values = json.loads(file.read_text(encoding="utf-8"))
    found = dict.fromkeys(["480p ×1", "480p ×81"], True)
    file.write_text(json.dumps({**values, "recomputation": found}), encoding="utf-8")
    recipe = recipe_file.parse(
        tiny_recipe.least(
            bucket=[{"resolution": "480p", "num_frames": [1, 81], "batch_size": "auto"}],
            buckets={"tuned": str(file), "gradient_checkpointing": {"480p ×1": False}},
            model={"gradient_checkpointing": "auto"},
        )
    )
    made = measured.with_numbers(recipe)
    assert made.buckets.gradient_checkpointing == {"480p ×1": False, "480p ×81": True}


@pytest.mark.parametrize("lost", ["model_ms", "trials"])
def test_a_file_without_times_is_named(tmp_path: Path, lost: str) -> None:
    file = written(tmp_path, dict.fromkeys(TOKENS, 4))
    value = json.loads(file.read_text(encoding="utf-8"))
    del value[lost]
    file.write_text(json.dumps(value), encoding="utf-8")
    with refused("tuned-file-invalid", "buckets.tuned", says="not a file of measured"):
        tuned.read(str(file), 1.0)


def shared(file: Path, **changes: Any) -> Recipe:
    values = tiny_recipe.least(
        bucket=[{"resolution": "480p", "num_frames": [1, 81], "batch_size": "auto"}],
        buckets={"tuned": str(file)},
        model={"name": "stdit3-xl"},
        parallel={"sequence_degree": "auto"},
    )
    return recipe_file.parse(values | changes)


def test_memory_and_time_decide_how_many_ranks_share_a_clip(tmp_path: Path) -> None:
    """16 GB are left for activations, of the 31.4 that a clip of 480p × 81 takes; as 24 seconds are too long, more ranks share it."""
    file = written(tmp_path, {"480p ×81": 0, "480p ×1": 8})
    model, limits = tuned.read_limits(str(file))
    assert model == MODEL
    assert limits.bytes_per_token == pytest.approx(PER_TOKEN, rel=1e-6)
    assert limits.activation_bytes == pytest.approx(16e9, rel=1e-6)
    recipe = measured.with_numbers(shared(file))
    assert (recipe.bucket[0].sequence_degree, recipe.parallel.sequence_degree) == ([1, 2], 8)
    assert recipe.bucket[0].batch_size == [8, 1]
    quick = measured.with_numbers(shared(file, train={"max_steps": 1, "step_seconds": 7.0}))
    assert quick.bucket[0].sequence_degree == [1, 4]
    assert quick.train.step_seconds is None
    chosen = [{"resolution": "480p", "num_frames": [1, 81], "batch_size": 1, "sequence_degree": [2, 8]}]
    assert measured.with_numbers(shared(file, bucket=chosen)).bucket[0].sequence_degree == [2, 8]


def test_costs_of_shared_clips_have_the_exchanges(tmp_path: Path) -> None:
    """The time of one rank, its clips' divided, and the exchanges, whether or not a micro-batch is full; a run's times have them."""
    file = written(tmp_path, {"480p ×81": 0, "480p ×1": 8})
    value = json.loads(file.read_text(encoding="utf-8"))
    names = [bucket.name for bucket in opened(shared(file)).table.buckets]
    one = {"per_batch": 50.0, "per_clip": 100.0}
    file.write_text(json.dumps(value | {"costs_ms": dict.fromkeys(names, one)}), encoding="utf-8")
    data = opened(shared(file, cost={"measured": str(file)}))
    exchange = data.spec.exchange
    assert exchange is not None
    assert (exchange.width, exchange.attentions) == (1152, 28)
    for bucket in data.table.buckets:
        for clips in range(
            bucket.batch_size + 1
        ):  # of each of the micro-batches that a sequence group trains side by side
            ms = 1000 * exchange.seconds(bucket.tokens * clips, bucket.sequence_degree)
            expected = 50 + 100 * clips / bucket.sequence_degree + ms
            time = data.measured_ms[bucket.name]
            assert time.milliseconds(clips * bucket.parts) == pytest.approx(expected, rel=1e-4)
    of_run = tmp_path / "costs.json"
    of_run.write_text(json.dumps(dict.fromkeys(names, one)), encoding="utf-8")
    assert set(opened(shared(file, cost={"measured": str(of_run)})).measured_ms.values()) == {BatchTime(**one)}


def test_a_slower_link_lets_fewer_ranks_share_clips_at_a_higher_cost(tmp_path: Path) -> None:
    """Room for 8 pictures on a rank is room for 71 on eight, which saves a part of the five seconds that each micro-batch costs."""
    file = written(tmp_path, {"480p ×81": 0, "480p ×1": 8}, CostModel(5000, 1, 0.05, 1e-6))
    names = [bucket.name for bucket in opened(shared(file)).table.buckets]
    file.write_text(
        json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"costs_ms": dict.fromkeys(names, 100.0)}),
        encoding="utf-8",
    )
    numbers = {"batch_size": [8, 1], "sequence_degree": [1, 2]}
    entries = [{"resolution": "480p", "num_frames": [1, 81]} | numbers]
    chosen, costs = [], []
    for speed in (300.0, 60.0, 10.0):
        link = {"link_gb_per_second": speed}
        chosen.append(measured.with_numbers(shared(file, parallel={"sequence_degree": "auto"} | link)))
        parallel = {"sequence_degree": 2} | link
        data = opened(shared(file, bucket=entries, parallel=parallel, cost={"measured": str(file)}))
        costs.append(data.measured_ms["480p 16:9 ×81"].milliseconds(1))
        assert idle_keys.lines(data.recipe) == []
    assert [one.bucket[0].sequence_degree for one in chosen] == [[8, 2], [8, 2], [1, 2]]
    assert costs == sorted(set(costs))
    alone = idle_keys.lines(shared(file, parallel=link))
    assert any("parallel.link_gb_per_second" in line for line in alone)


def opened(recipe: Recipe) -> dataset.RecipeData:
    """Return the data of a recipe without clips."""
    made, none = measured.with_numbers(recipe), sample_catalog().live().take(np.zeros(0, dtype=np.int64))
    return dataset.RecipeData(sample_catalog(), dataset._table(made), dataset._spec(made), none, none, recipe=made)


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"buckets": {}}, "degrees-not-measured", "buckets.tuned"),
        ({"buckets": "auto", "bucket": []}, "degrees-without-entries", "parallel.sequence_degree"),
        ({"parallel": {"sequence_degree": 2, "max_sequence_degree": 4}}, "largest-degree-without-use", "parallel.max_sequence_degree"),
        ({"parallel": {"sequence_degree": "auto", "max_sequence_degree": 3}}, "heads-not-divisible", "parallel.max_sequence_degree"),
        ({"model": {"name": "sdxl"}}, "sequence-not-shared", "parallel.sequence_degree"),
        ({"parallel": {"sequence_degree": "many"}}, None, "parallel.sequence_degree"),
        ({"parallel": {"sequence_degree": 0}}, None, "parallel.sequence_degree"),
        ({"parallel": {"sequence_degree": 2, "link_gb_per_second": 0.0}}, None, "parallel.link_gb_per_second"),
        ({"parallel": {"sequence_degree": 2, "link_gb_per_second": math.inf}}, None, "parallel.link_gb_per_second"),
        ({"parallel": {"sequence_degree": "auto", "max_sequence_degree": 1}}, "no-degree-fits", "parallel.max_sequence_degree"),
        ({"train": {"max_steps": 1, "compile": True}}, "compiled-with-shared-tokens", "train.compile"),
    ],
)  # fmt: skip
def test_degrees_that_cannot_be_chosen_are_refused(
    tmp_path: Path, changes: dict[str, Any], code: str | None, field: str
) -> None:
    file = written(tmp_path, {"480p ×81": 0, "480p ×1": 8})
    with pytest.raises(UserError) as found:
        measured.with_numbers(shared(file, **changes))
    assert found.value.field == field
    assert code is None or found.value.code == code


def test_measurements_that_tell_nothing_of_memory_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, {"480p ×81": 0, "480p ×1": 8})
    value = json.loads(file.read_text(encoding="utf-8"))
    for changes in ({"trials": []}, {"limits": {}}, {"limits": value["limits"] | {"memory_bytes": "many"}}):
        file.write_text(json.dumps(value | changes), encoding="utf-8")
        with refused("tuned-file-invalid", "buckets.tuned", says="measure"):
            tuned.read_limits(str(file))
    for trial in value["trials"]:
        trial["peak_bytes"] = FIXED
    file.write_text(json.dumps(value), encoding="utf-8")
    with refused("tuned-file-invalid", "buckets.tuned", says="tell nothing of clips"):
        tuned.read_limits(str(file))
