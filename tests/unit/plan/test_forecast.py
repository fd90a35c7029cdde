"""A forecast says what training will do: each figure is held against the plans themselves."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import prepare_files as files
import pytest
import tomli_w
from refused import refused
from typer.testing import CliRunner

from reelworks.commands import show_plan
from reelworks.commands.main import app
from reelworks.core import gpus, log, results
from reelworks.data.schedule.cost import CostConfig
from reelworks.data.schedule.plan import EpochPlan
from reelworks.models.adapters.config import LoraConfig
from reelworks.training.plan import epoch_stats, plan_comparison, plan_forecast, plan_report, plan_request
from reelworks.training.plan.epoch_stats import gradient_weight
from reelworks.training.plan.plan_request import PlanRequest
from reelworks.training.preflight import stage_forecast
from reelworks.training.recipe import dataset, diff, recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.origin import Origin
from reelworks.training.recipe.recipe import Recipe

SIZES = [(96, 96), (128, 72), (72, 128), (96, 128), (128, 96), (64, 150), (150, 64)]
RATIOS = ["1:1", "16:9", "9:16", "4:3", "3:4", "21:9", "9:21"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty pictures of seven aspect ratios, some videos, and two that nothing can be done with."""
    root = tmp_path_factory.mktemp("forecast")
    for i in range(20):
        files.picture(root / "data" / f"{i:02d}.png", SIZES[i % 7], grey=i)
    for i in range(3):
        files.clip(root / "data" / f"clip-{i}.mp4", 9 + i)
    files.picture(root / "data" / "tiny.png", (16, 16))
    files.picture(root / "data" / "mute.png", caption=None)
    dataset.scan_recipe(files.recipe(root))
    return root


def recipe(folder: Path, keep_prob: float = 1.0, **changes: Any) -> Recipe:
    entries = [
        {"resolution": "80px", "num_frames": 1, "batch_size": 8, "keep_prob": keep_prob},
        {"resolution": "48px", "num_frames": [1, 9], "batch_size": [8, 2], "keep_prob": keep_prob},
    ]
    values = {"bucket": entries, "buckets": {"aspect_ratios": RATIOS, "max_crop": 0.6}}
    return files.recipe(folder, **(values | changes))


def padded(folder: Path) -> Recipe:
    return recipe(folder, buckets={"aspect_ratios": RATIOS, "max_crop": 0.6, "incomplete_batch": "pad"})


def test_epochs_and_their_sum_are_those_of_the_plans(folder: Path) -> None:
    made = padded(folder)
    told = results.as_json(plan_forecast.forecast(made, 2, epochs=3))
    data = RecipeData.open(made)
    spec = data.plan_spec(2, 2)
    waiting, places = [], 0
    for epoch, one in enumerate(told["epochs"]):
        plan = data.plan(spec, epoch)
        alone = results.as_json(plan_report.summarise(data, spec, plan, world=2, epoch=epoch))
        assert (one["epoch"], one["steps"], one["clips"]) == (epoch, plan.num_steps, plan.planned)
        assert one["tokens"] == sum(b["clips"] * b["tokens_per_clip"] for b in alone["buckets"])
        for key in ("micro_batches", "incomplete"):
            assert one[key] == alone[key]
        for key in ("imbalance", "padding"):
            assert one[key] == pytest.approx(alone[key], abs=1e-12)
        waiting.append((plan.costs_us(spec).sum() / 2, alone["imbalance"]))
        places += len(plan.uid)
    total = told["sum"]
    for key in ("steps", "clips", "tokens", "micro_batches", "incomplete"):
        assert total[key] == sum(one[key] for one in told["epochs"])
    assert total["padding"] == pytest.approx(1 - total["clips"] / places)
    spent = sum(busy / (1 - share) for busy, share in waiting)
    assert total["imbalance"] == pytest.approx(1 - sum(busy for busy, _ in waiting) / spent)


def naive_gradient(plan: EpochPlan, tokens: np.ndarray, loss_reduction: str) -> dict[int, float]:
    """The mean over steps of each bucket's part of a step's weight, clip by clip."""
    shares: dict[int, float] = {}
    for plan_step in range(plan.num_steps):
        weights: list[tuple[int, float]] = []
        for micro_batch in plan.micro_batches(plan_step).tolist():
            where = plan.places(micro_batch)
            clips = int(plan.real[where].sum())
            bucket = int(plan.bucket[where.start])
            each = {"token": float(tokens[bucket]), "sample": 1.0, "micro_batch": 1 / clips}[loss_reduction]
            weights += [(bucket, each)] * clips
        whole = sum(weight for _, weight in weights)
        for bucket, weight in weights:
            shares[bucket] = shares.get(bucket, 0.0) + weight / whole / plan.num_steps
    return shares


def test_how_many_epochs_are_planned_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[tuple[str, Callable[[], str]]] = []
    stage = log.stage
    monkeypatch.setattr(log, "stage", lambda *said: (stages.append(said), stage(*said))[1])
    told = [stages[-1][1]() for _ in epoch_stats.one_by_one(range(4, 7))]
    assert told == ["epoch 1 of 3", "epoch 2 of 3", "epoch 3 of 3"]


@pytest.mark.parametrize("loss_reduction", ["token", "sample", "micro_batch"])
def test_shares_are_those_of_clips_tokens_and_gradients(folder: Path, loss_reduction: str) -> None:
    made = recipe(folder, train={"max_epochs": 1, "loss_reduction": loss_reduction})
    told = results.as_json(plan_forecast.forecast(made, 2))
    data = RecipeData.open(made)
    plan, tokens = data.plan(data.plan_spec(2, 2), 0), data.table.tokens()
    naive = naive_gradient(plan, tokens, loss_reduction)
    by_name = {one["name"]: one for one in told["shares"]}
    assert by_name.keys() == {data.table.buckets[i].name for i in naive}
    for i, share in naive.items():
        one, clips = by_name[data.table.buckets[i].name], int((plan.bucket == i).sum())
        assert one["share_of_gradient"] == pytest.approx(share)
        assert one["share_of_clips"] == pytest.approx(clips / plan.planned)
        assert one["share_of_tokens"] == pytest.approx(clips * tokens[i] / tokens[plan.bucket].sum())
    assert gradient_weight(plan, tokens, made.train.loss_reduction).sum() == pytest.approx(plan.num_steps)


def test_clips_that_no_epoch_sees_are_named(folder: Path) -> None:
    made = recipe(folder, keep_prob=0.2)
    data = RecipeData.open(made)
    seen: set[str] = set()
    former = len(data.rows) + 1
    for epochs in (1, 2, 4):
        never = results.as_json(plan_forecast.forecast(made, 1, epochs))["never_seen"]
        for epoch in range(epochs):
            rows = data.rows.find(data.entries(epoch).uid)
            seen |= {f"data/{data.rows.path[int(i)].as_py()}" for i in rows}
        files_named = [path for one in never["by_reason"].values() for path in one["files"]]
        assert len(files_named) == never["clips"] == len(data.rows) - len(seen) < former
        assert not seen & set(files_named)
        assert never["by_reason"]["too_small"] == {"clips": 1, "files": ["data/tiny.png"]}
        assert never["by_reason"]["no_caption"] == {"clips": 1, "files": ["data/mute.png"]}
        assert never["by_reason"]["not_drawn"]["files"] == sorted(never["by_reason"]["not_drawn"]["files"])
        former = never["clips"]


def test_a_clip_of_several_uses_that_may_be_drawn_is_called_so(folder: Path) -> None:
    """Whatever its other uses miss; as all lists of left-out clips do."""
    entries = [
        {"resolution": size, "num_frames": 1, "keep_prob": keep} for size, keep in (("48px", 0.2), ("1024px", 1))
    ]
    made = recipe(folder, bucket=entries, dataset=[{"path": str(folder / "data"), "resolutions": ["48px", "1024px"]}])
    told = plan_forecast.forecast(made, 1)
    never = {reason: one.clips for reason, one in told.ahead.never_seen.by_reason.items()}
    assert never["not_drawn"] > 2
    assert never == {reason: one.clips for reason, one in told.left_out.items()}


def test_the_first_epoch_is_the_first_that_has_a_step(folder: Path) -> None:
    """As training begins; those before it, for which chance draws no clip, are no reason to plan nothing."""
    made = recipe(folder, keep_prob=0.01, seed=1)
    data = RecipeData.open(made)
    first = next(epoch for epoch in range(100) if data.entries(epoch).uid.size)
    assert first > 0, "or the test would show nothing"
    for world in (1, 2):
        told = plan_forecast.forecast(made, world, 20)
        assert [one.epoch for one in told.ahead.epochs] == list(range(first, first + 20))
        assert told.ahead.epochs[0].figures.clips == told.planned == len(data.entries(first))
        outline = plan_forecast.outline(data, world)
        assert (outline.planned, outline.left_out) == (told.planned, told.left_out)
        assert plan_forecast.advice(data, world) == plan_forecast.forecast(made, world).advice


def test_a_held_out_clip_is_seen_by_validation(folder: Path) -> None:
    told = results.as_json(plan_forecast.forecast(recipe(folder, validation={"split": 0.3}), 1))
    assert told["held_out"] > 0
    assert told["never_seen"]["by_reason"].keys() == {"no_caption", "too_small"}


def test_an_even_plan_calls_for_no_cure(folder: Path) -> None:
    assert results.as_json(plan_forecast.forecast(recipe(folder), 1))["proposals"] is None


def test_too_many_ranks_for_the_clips_are_told_how_many_are_not(folder: Path) -> None:
    made = recipe(folder)
    told = results.as_json(plan_forecast.forecast(made, 32, 2))
    assert not any(one["suffices"] for one in told["proposals"])
    fewer = told["fewer_ranks"]
    assert fewer["imbalance"] <= 0.1 < told["sum"]["imbalance"]
    again = results.as_json(plan_forecast.forecast(made, fewer["world"], 2))
    assert {"world": fewer["world"]} | again["sum"] == pytest.approx(fewer)
    assert results.as_json(plan_forecast.forecast(made, 2 * fewer["world"], 2))["sum"]["imbalance"] > 0.1
    fixed = recipe(folder, train={"max_epochs": 1, "micro_batches_per_step": 32, "same_bucket_run": 32})
    assert results.as_json(plan_forecast.forecast(fixed, 32))["fewer_ranks"]["world"] >= 1
    # GPUs are told, also where two share their clips and take part as one.
    shared = results.as_json(plan_forecast.forecast(recipe(folder, parallel={"sequence_degree": 2}), 64, 2))
    assert shared["fewer_ranks"] == pytest.approx(fewer | {"world": 2 * fewer["world"]})


@pytest.mark.parametrize(("world", "epochs"), [(1, 2), (2, 1)])
def test_a_cure_gives_what_it_says(folder: Path, tmp_path: Path, world: int, epochs: int) -> None:
    """Each proposal is typed after --set, and the forecast is then the one that it told."""
    made = padded(folder)
    told = results.as_json(plan_forecast.forecast(made, world, epochs))
    assert told["sum"]["padding"] > 0.1
    assert {"merge", "pad", "partial"} == {one["incomplete_batch"] for one in told["proposals"]}
    suffices = [one["suffices"] for one in told["proposals"]]
    assert suffices == sorted(suffices, reverse=True)
    assert any(suffices) == (world == 1)  # at two, most steps of so few pictures are uneven
    assert any(one["batch_sizes"] for one in told["proposals"])
    for one in told["proposals"]:
        alone = [other for other in told["proposals"] if not other["batch_sizes"] or other["incomplete_batch"] == "pad"]
        if one not in alone:
            assert not any(other["suffices"] or other["waste"] <= one["waste"] for other in alone)
    written = tmp_path / "recipe.toml"
    written.write_text(recipe_file.dump(made), encoding="utf-8")
    for one in told["proposals"]:
        cured = results.as_json(plan_forecast.forecast(recipe_file.load(written, one["set"]), world, epochs))
        assert cured["sum"] == pytest.approx({key: one[key] for key in cured["sum"]})
        assert one["suffices"] == (max(one["imbalance"], one["padding"]) <= 0.1)
        assert (cured["proposals"] is None) == one["suffices"]


@pytest.mark.parametrize("stage", ["a", "b"])
def test_a_cure_of_a_stage_gives_what_it_says_whatever_tables_the_stage_has(
    folder: Path, tmp_path: Path, stage: str
) -> None:
    made = tomllib.loads(recipe_file.dump(padded(folder)))
    del made["train"]["max_epochs"]
    written = tmp_path / "stages.toml"
    own = {"bucket": made["bucket"], "buckets": made["buckets"]}
    written.write_text(
        tomli_w.dumps({**made, "stage": [{"name": "a", "steps": 5}, {"name": "b", "steps": 5, **own}]}),
        encoding="utf-8",
    )

    def forecast(*overrides: str) -> Any:
        asked = PlanRequest(recipes=(written,), overrides=(f"stage={stage}", *overrides), no_scan=True)
        return results.as_json(plan_request.forecast(asked, written)[2])

    told = forecast()
    assert any(one["batch_sizes"] for one in told["proposals"])
    for one in told["proposals"]:
        assert forecast(*one["set"])["sum"] == pytest.approx({key: one[key] for key in told["sum"]})


def test_a_cure_names_the_entries_of_an_open_sora_table(folder: Path) -> None:
    table = {"48px": {"1": [1.0, 8], "9": [1.0, 4]}}
    buckets = {"opensora": table, "probability": "opensora-1.2", "incomplete_batch": "pad"}
    told = results.as_json(plan_forecast.forecast(recipe(folder, bucket=[], buckets=buckets), 2))
    sizes = [one for one in told["proposals"] if one["incomplete_batch"] == "pad"]
    assert sizes[0]["set"] == []
    named = {one["entry"]: (one["from"], one["to"]) for one in sizes[0]["batch_sizes"]}
    assert named.keys() <= {"48px ×1", "48px ×9"}
    assert all(to < now for now, to in named.values())


def test_a_cure_sets_no_entry_that_the_recipe_does_not_have(folder: Path) -> None:
    buckets = {"entries": "auto", "batch_size": 6, "incomplete_batch": "pad"}
    told = results.as_json(plan_forecast.forecast(recipe(folder, bucket=[], buckets=buckets), 2))
    assert any(one["batch_sizes"] for one in told["proposals"])
    assert not [text for one in told["proposals"] for text in one["set"] if "bucket." in text]


def test_two_recipes_side_by_side(folder: Path) -> None:
    one, other = recipe(folder), recipe(folder, bucket=[{"resolution": "48px", "num_frames": 1}], seed=7)
    a, b = plan_forecast.forecast(one, 2, 2), plan_forecast.forecast(other, 2, 2)
    told = results.as_json(plan_comparison.compare((one, a), (other, b)))
    keys = {change["key"]: (change["a"], change["b"]) for change in told["keys"]}
    assert keys["seed"] == (42, 7)
    assert keys["bucket.0.resolution"] == ("80px", "48px")
    assert keys["bucket.1.resolution"] == ("48px", diff.NOT_SET)
    assert "version" not in keys
    figures = {one["name"]: (one["a"], one["b"]) for one in told["figures"]}
    assert figures["clips"] == (46, 40)
    assert figures["steps"] == (a.ahead.sum.steps, b.ahead.sum.steps)
    reasons = {one["name"]: (one["a"], one["b"]) for one in told["reasons"]}
    assert reasons == {"too_small": (1, 1), "no_caption": (1, 1), "no_bucket": (0, 3)}
    by_bucket = {one["name"]: (one["a"], one["b"]) for one in told["buckets"]}
    assert by_bucket["48px 4:3 ×9"] == (6, 0)
    assert tuple(map(sum, zip(*by_bucket.values(), strict=True))) == figures["clips"]
    same = results.as_json(plan_comparison.compare((one, a), (one, a)))
    assert same["keys"] == []
    assert all(x["a"] == x["b"] for part in ("figures", "buckets", "reasons") for x in same[part])


@pytest.fixture
def written(folder: Path, tmp_path: Path) -> tuple[str, str]:
    for name, made in (("a.toml", recipe(folder)), ("b.toml", padded(folder))):
        (tmp_path / name).write_text(recipe_file.dump(made), encoding="utf-8")
    return str(tmp_path / "a.toml"), str(tmp_path / "b.toml")


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_command_warns_and_says_what_cures(written: tuple[str, str]) -> None:
    _, wasteful = written
    said = command(wasteful, "--world", "2", "--epochs", "2")
    told = json.loads(command(wasteful, "--world", "2", "--epochs", "2", "--json"))
    first = told["proposals"][0]
    assert f"warning: imbalance {told['sum']['imbalance']:.1%}, padding {told['sum']['padding']:.1%}" in said
    assert " ".join(f"--set '{text}'" for text in first["set"]) in said
    assert f"gives {first['steps']} steps, imbalance {first['imbalance']:.1%}" in said
    assert "2 clips never seen in 2 epochs: 1 no_caption, 1 too_small" in said
    assert "  too_small: data/tiny.png" in said


@pytest.mark.slow
def test_the_command_draws_what_it_prints(written: tuple[str, str], tmp_path: Path) -> None:
    _, wasteful = written
    page = tmp_path / "plan.html"
    told = json.loads(command(wasteful, "--world", "2", "--html", str(page), "--json"))
    text = page.read_text(encoding="utf-8")
    assert "What b would train" in text
    assert all(one["name"] in text for one in told["shares"])
    assert command(wasteful, "--world", "2", "--html", str(page)).splitlines()[-1] == str(page)
    with refused("one-plan-only", "--html"):
        command("--diff", *written, "--html", str(page))


def timed(
    folder: Path,
    name: str,
    per_batch: float,
    per_clip: float,
    named: int | None = None,
    device: str | None = None,
    **table: Any,
) -> Recipe:
    """A recipe with measured times, the same for every bucket, or for so many; sizes of its network need not be measured."""
    published: dict[str, Any] = {
        "model": {"name": "wan-2.1-1.3b", "weights": "w"},
        "autoencoder": {"name": "wan-2.1", "weights": "w"},
        "text_encoder": {"name": "wan", "weights": "w"},
        "encode": {"store": True},
        "lora": {},
        "train": {"max_epochs": 3},
        "buckets": {"aspect_ratios": RATIOS, "max_crop": 0.6, **table},
    }
    names = [bucket.name for bucket in RecipeData.open(recipe(folder, **published)).table.buckets][:named]
    times = {name: {"per_batch": per_batch, "per_clip": per_clip} for name in names}
    made = recipe(folder, **published, cost={"measured": str(folder / name)})
    values = times if device is None else {"costs_ms": times, "origin": asdict(Origin.of_recipe(made, device))}
    (folder / name).write_text(json.dumps(values), encoding="utf-8")
    return made


@pytest.mark.parametrize("incomplete_batch", ["partial", "pad"])
@pytest.mark.parametrize(("world", "per_batch"), [(1, 0.0), (1, 500.0), (2, 500.0)])
def test_measured_times_are_those_of_the_micro_batches_that_are_planned(
    folder: Path, incomplete_batch: str, world: int, per_batch: float
) -> None:
    """Full or not, and with the clips that fill them. A forecast says so, as do shares of time and tokens in a second."""
    made = timed(folder, "all.json", per_batch, 1000.0, incomplete_batch=incomplete_batch)
    data = RecipeData.open(made)
    spec, ms = plan_forecast.plan_spec(data, world), []
    for epoch in range(3):
        plan = data.plan(spec, epoch)
        each = np.append(per_batch + 1000.0 * np.diff(plan.offsets), 0)[plan.steps]
        ms.append(float(np.pad(each, ((0, 0), (0, -each.shape[1] % world))).reshape(len(each), -1, world).max(2).sum()))
    told = plan_forecast.forecast(made, world, 3, data)
    on_gpu = stage_forecast.of_gpu(data, told, gpus.USUAL)
    assert on_gpu.is_measured
    assert on_gpu.steps * on_gpu.seconds_per_step == pytest.approx(sum(ms) / 1000, rel=0.02)
    assert told.ahead.sum.spent_us / 1000 == pytest.approx(sum(ms), rel=0.01)
    if world > 1:
        assert told.strategies[-1].tokens_per_second == pytest.approx(
            1000 * told.ahead.epochs[0].figures.tokens / ms[0]
        )


@pytest.mark.parametrize(
    ("device", "changes", "is_own"),
    [
        ("NVIDIA H100 80GB HBM3", {}, True),
        ("NVIDIA L4", {}, False),
        ("estimate", {}, False),
        ("cpu", {}, False),
        ("NVIDIA H100 80GB HBM3", {"lora": LoraConfig(rank=64)}, False),
    ],
)
def test_times_of_another_gpu_or_network_are_not_told_as_those_of_this_one(
    folder: Path, device: str, changes: dict[str, Any], is_own: bool
) -> None:
    """They are estimated as without the file, and a plan says that the network is another one."""
    made = timed(folder, "own.json", 0.0, 1000.0, device=device).model_copy(update=changes)
    data, bare = (RecipeData.open(each) for each in (made, made.model_copy(update={"cost": CostConfig()})))
    told, without = (
        stage_forecast.of_gpu(each, plan_forecast.forecast(each.recipe, 1, 1, each), gpus.GPUS["H100"])
        for each in (data, bare)
    )
    assert told.is_measured == is_own
    assert is_own or told.seconds_per_step == pytest.approx(without.seconds_per_step, rel=0.02)
    lines = plan_report.warnings(plan_forecast.forecast(made, 1, 1, data))
    assert any("own.json was measured with lora.rank = 16, which is 64 here" in line for line in lines) == bool(changes)


def test_a_time_that_was_measured_of_some_buckets_is_an_estimate_by_the_costs_of_the_plan(folder: Path) -> None:
    made = timed(folder, "some.json", 0.0, 1000.0, named=9)
    data = RecipeData.open(made)
    told = plan_forecast.forecast(made, 1, 3, data)
    on_gpu = stage_forecast.of_gpu(data, told, gpus.USUAL)
    assert not on_gpu.is_measured
    # A clip of those that were measured takes a second.
    known = [one.share_of_time / one.clips for one in told.ahead.shares if one.name in data.measured_ms]
    assert on_gpu.steps * on_gpu.seconds_per_step == pytest.approx(1 / known[0], rel=0.02)


def test_no_change_is_proposed_that_waits_less_and_takes_longer(folder: Path) -> None:
    """Where a micro-batch costs much besides its clips, small ones are even, and slow."""
    values = {
        "bucket": [{"resolution": "48px", "num_frames": 1, "batch_size": 16}],
        "buckets": {"aspect_ratios": ["1:1"], "max_crop": 0.9},
    }
    one_bucket, proposed = folder / "one-bucket.json", []
    for per_batch in (0.0, 10.0):
        one_bucket.write_text(json.dumps({"48px 1:1 ×1": {"per_batch": per_batch, "per_clip": 1.0}}), encoding="utf-8")
        told = plan_forecast.forecast(recipe(folder, **values, cost={"measured": str(one_bucket)}), 2)
        assert told.ahead.sum.imbalance > 0.1
        assert told.advice.proposals is not None
        proposed.append(told.advice.proposals)
        assert all(one.figures.spent_us <= told.ahead.sum.spent_us for one in told.advice.proposals)
    assert [len(proposals) > 0 for proposals in proposed] == [True, False]


@pytest.mark.slow
def test_time_and_memory_are_told_for_a_gpu_that_is_named(written: tuple[str, str]) -> None:
    told = json.loads(command(written[0], "--gpu", "h100", "--json"))
    assert told["on_gpu"]["gpu"] == "H100"
    assert told["on_gpu"]["steps"] > 0
    assert 0 < told["on_gpu"]["seconds_per_step"] < 1
    assert 1e6 < told["on_gpu"]["memory_bytes"] < 8e9
    shared, copies = (
        json.loads(command(written[0], "--gpu", "h100", "--world", "8", "--json", *more))["on_gpu"]
        for more in ((), ("--set", "parallel.strategy=replicated"))
    )
    assert shared["memory_bytes"] < copies["memory_bytes"] == told["on_gpu"]["memory_bytes"]
    with refused("unknown-gpu", "--gpu"):
        command(written[0], "--gpu", "RTX 4080")
    with refused("one-plan-only", "--gpu"):
        command("--diff", *written, "--gpu", "H100")


@pytest.mark.slow
def test_the_command_compares_two_recipes(written: tuple[str, str]) -> None:
    said = command("--diff", *written)
    told = json.loads(command("--diff", *written, "--json"))
    assert [one["key"] for one in told["keys"]] == ["buckets.incomplete_batch"]
    assert "buckets.incomplete_batch" in said
    assert "no key differs" in command("--diff", written[0], written[0])


def test_the_number_of_recipes_must_fit(written: tuple[str, str]) -> None:
    with refused("wrong-number-of-recipes", "RECIPE"):
        command(*written)
    with refused("wrong-number-of-recipes", "RECIPE"):
        command("--diff", written[0])


@pytest.mark.parametrize(
    ("schedule", "max_steps", "told"), [("cosine", None, 3), ("constant", None, 0), ("linear", 9, 0)]
)
def test_the_steps_over_which_a_rate_falls_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str], schedule: str, max_steps: int | None, told: int
) -> None:
    """A recipe says epochs, and only its plan knows their steps."""
    train = {"max_epochs": 3, "max_steps": max_steps, "learning_rate_schedule": schedule}
    found = plan_forecast.forecast(recipe(folder, train=train), 1)
    assert found.learning_rate_steps == (told * found.steps_per_epoch or None)
    show_plan.forecast(found, None)
    said = f"The learning rate falls over {3 * found.steps_per_epoch} steps"
    assert (said in " ".join(capsys.readouterr().out.split())) == bool(told)
