"""A plan beside simpler strategies: each figure is held against plans of their own, and the plan waits least."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import prepare_files as files
import pytest
import wasted_time

from reelworks.commands import show_plan
from reelworks.data.schedule.plan import plan_epoch
from reelworks.training.plan import plan_forecast, strategies
from reelworks.training.plan.epoch_stats import Figures
from reelworks.training.plan.plan_fixes import BatchSizeChange, ProposedChange
from reelworks.training.recipe import dataset
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

SIZES = [(96, 96), (128, 72), (72, 128)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures and six videos."""
    root = tmp_path_factory.mktemp("strategies")
    for i in range(24):
        files.picture(root / "data" / f"{i:02d}.png", SIZES[i % 3], grey=i)
    for i in range(6):
        files.clip(root / "data" / f"clip-{i}.mp4", 9 + i)
    dataset.scan_recipe(files.recipe(root))
    return root


def recipe(folder: Path, measured: dict[str, float] | None = None) -> Recipe:
    entries = [
        {"resolution": "80px", "num_frames": 1, "batch_size": 6},
        {"resolution": "48px", "num_frames": [1, 9], "batch_size": [8, 2]},
    ]
    changes = {}
    if measured is not None:
        (folder / "costs.json").write_text(json.dumps(measured), encoding="utf-8")
        changes["cost"] = {"measured": str(folder / "costs.json")}
    return files.recipe(folder, bucket=entries, buckets={"aspect_ratios": ["1:1", "16:9", "9:16"]}, **changes)


def test_figures_are_those_of_three_plans(folder: Path) -> None:
    made = recipe(folder)
    data = RecipeData.open(made)
    spec, tokens = data.plan_spec(4, 4), data.table.tokens()
    told = {one.strategy: one for one in plan_forecast.forecast(made, 4).strategies}
    assert list(told) == ["fixed", "equal_tokens", "planned"]
    assert told["planned"].imbalance == pytest.approx(data.plan(spec, 0).waste(spec, 4))
    largest = max(one.peak_tokens for one in told.values())
    speeds = {}
    for name, one in (strategies.simple(spec, data.entries(0), tokens) | {"planned": spec}).items():
        plan = plan_epoch(data.entries(0), one, 0)
        bucket, places = plan.bucket[plan.offsets[:-1]], np.diff(plan.offsets)
        costs = np.array(one.costs_us, dtype=np.float64)[bucket]
        waste = wasted_time.measure(plan.steps, places, places, costs, 4).in_all
        sizes = [sum(tokens[b] for b in plan.bucket[plan.places(m)]) for m in range(len(bucket))]
        assert told[name].steps == plan.num_steps
        assert told[name].imbalance == pytest.approx(waste)
        assert told[name].peak_tokens == max(sizes)
        assert told[name].memory_share == pytest.approx(np.mean(sizes) / largest)
        assert told[name].tokens_per_second is None
        speeds[name] = sum(sizes) / ((places * costs).sum() / 4 / (1 - waste))
        assert told[name].speedup == pytest.approx(speeds[name] / speeds["fixed"])


def test_simple_strategies_keep_the_memory_of_the_plan(folder: Path) -> None:
    data = RecipeData.open(recipe(folder))
    spec, tokens, entries = data.plan_spec(4, 4), data.table.tokens(), data.entries(0)
    budget = max(spec.batch_sizes[b] * tokens[b] for b in set(entries.bucket.tolist()))
    found = strategies.simple(spec, entries, tokens)
    assert len(set(found["fixed"].batch_sizes)) == 1
    for one in found.values():
        for b in set(entries.bucket.tolist()):
            assert one.batch_sizes[b] * tokens[b] <= budget
    for b, size in enumerate(found["equal_tokens"].batch_sizes):
        assert (size + 1) * tokens[b] > budget
    larger = strategies.simple(spec, entries, tokens, 10 * budget)
    assert larger["fixed"].batch_sizes[0] >= 10 * found["fixed"].batch_sizes[0]


def test_tokens_per_second_are_those_of_measured_times(folder: Path) -> None:
    """With a millisecond for each token on each rank, ranks that never waited would train thousands of tokens a second."""
    tokens = RecipeData.open(recipe(folder)).table
    made = recipe(folder, {bucket.name: float(bucket.tokens) for bucket in tokens.buckets})
    for one in plan_forecast.forecast(made, 4).strategies:
        assert one.tokens_per_second == pytest.approx(4 * 1000 * (1 - one.imbalance))
    half = recipe(folder, {tokens.buckets[0].name: 0.5 * tokens.buckets[0].tokens})
    for one in plan_forecast.forecast(half, 4).strategies:
        assert one.tokens_per_second == pytest.approx(4 * 2000 * (1 - one.imbalance), rel=0.02)


def test_memory_is_that_of_measured_micro_batches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = plan_forecast.forecast(recipe(folder), 4)
    assert {one.peak_bytes for one in plain.strategies} == {None}
    show_plan.forecast(plain, None)
    assert "memory follows the tokens" in capsys.readouterr().out
    most = max(one.peak_tokens for one in plain.strategies)

    def told(most_tokens: int) -> list[strategies.StrategyFigures]:
        trials = [{"tokens": most_tokens // n, "batch_size": n, "peak_bytes": 10**9 * n} for n in (1, 2)]
        trials.append({"tokens": 0, "batch_size": 1, "peak_bytes": 10**9})
        (folder / "tuned.json").write_text(json.dumps({"batch_sizes": {}, "trials": trials}), encoding="utf-8")
        made = recipe(folder)
        buckets = made.buckets.model_copy(update={"tuned": str(folder / "tuned.json")})
        return plan_forecast.forecast(made.model_copy(update={"buckets": buckets}), 4).strategies

    # From 1 GB without tokens to 2 GB with the most.
    for one in told(2 * (most // 2 + 1)):
        assert one.peak_bytes == pytest.approx(10**9 * (1 + one.peak_tokens / (2 * (most // 2 + 1))), rel=1e-6)
    assert [one.peak_bytes is None for one in told(most // 2)] == [
        one.peak_tokens > most // 2 for one in plain.strategies
    ]
    show_plan.forecast(plain.__class__(**vars(plain) | {"strategies": told(2 * most)}), None)
    out = capsys.readouterr().out
    assert "GB" in out
    assert "memory follows the tokens" not in out


def test_they_are_printed_for_several_gpus(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_plan.forecast(plan_forecast.forecast(recipe(folder), 2), None)
    assert "equal tokens" in capsys.readouterr().out
    alone = plan_forecast.forecast(recipe(folder), 1)
    assert alone.strategies == []
    show_plan.forecast(alone, None)
    assert "equal tokens" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["bucket.0.batch_size=2"], "--set 'bucket.0.batch_size=2'"),
        (['buckets.incomplete_batch="pad"'], "--set 'buckets.incomplete_batch=\"pad\"', 64px ×9: batch size 2 (now 4)"),
        ([], "64px ×9: batch size 2 (now 4)"),
    ],
)
def test_a_change_is_told_as_options_or_by_the_entry_that_none_changes(options: list[str], told: str) -> None:
    """Each batch size once."""
    change = ProposedChange("pad", [BatchSizeChange("64px ×9", 4, 2)], options, suffices=True, figures=Figures())
    assert str(change) == told
