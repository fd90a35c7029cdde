"""`eval --checkpoints`: every checkpoint once and alike, also after a kill; and what comes of it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import children
import killing
import numpy as np
import pytest
import torch
from PIL import Image
from test_lora import lora, on_file, pictures

from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.core.words import of_recipe
from reelworks.data.checkpoint import listing
from reelworks.data.checkpoint.config import CheckpointsConfig, KeepBest
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.inference.evaluate import checkpoint_series, evaluate, held_out, registry
from reelworks.inference.evaluate.checkpoint_series import CheckpointSeries, MeasuredCheckpoint
from reelworks.inference.evaluate.measure import MetricResult
from reelworks.inference.evaluate.request import EvalRequest
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.reports import checkpoint_grid, html

__all__ = ["lora", "pictures"]
SHOWN = {"prompts": ["a clip", "another clip"], "num_inference_steps": 1, "num_frames": 5, "height": 32, "width": 32}
LIKE, CLOSE = "samples/likeness-pixels", "samples/closeness-pixels"
MIXTURE = f"0.7 * {LIKE} - 0.3 * {CLOSE}"
COUNTED = """
import pathlib

import killing

HERE = pathlib.Path(__file__).parent

class Counted:
    name, higher_is_better, requires_reference = "counted", True, False

    def __init__(self, settings):
        with (HERE / "calls").open("a", encoding="utf-8") as file:
            file.write("x")
        if (HERE / "calls").stat().st_size == 3 and not (HERE / "killed").exists():
            (HERE / "killed").touch()
            killing.kill_self()

    def value(self, clip):
        return float(clip.frames.mean())
"""


@pytest.fixture(autouse=True)
def _metrics_of_a_test_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METRICS", replace(registry._METRICS, by_name=dict(registry._METRICS.by_name)))


@pytest.fixture(scope="module")
def trained(tiny_in: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, Any]]:
    """A run of four steps that has kept all its checkpoints, and measured its previews."""
    folder = tmp_path_factory.mktemp("series")
    samples = SHOWN | {"every_steps": 1, "metrics": ["likeness-pixels", "closeness-pixels", "motion"]}
    recipe = tiny_in(
        folder,
        train={"max_steps": 4, "learning_rate": 0.05, "ema_decay": 0.0},
        samples=samples,
        validation={"split": 0.3, "every_steps": 2},
        checkpoints={
            "every_steps": 1,
            "keep_last": 9,
            "keep_best": {"metric": MIXTURE, "mode": "max"},
        },
    )
    assert children.train(recipe) == [0], children.output(recipe)
    return RunFolder(folder / "run"), recipe


def measured(run: RunFolder, checkpoints: str = "all", **more: Any) -> CheckpointSeries:
    request = EvalRequest(source=run.path, checkpoints=checkpoints, timesteps=0, **more)
    with of_recipe():
        result = evaluate.evaluate(request).result
    assert isinstance(result, CheckpointSeries)
    return result


def measure_in_child(recipe: dict[str, Any], metric: str) -> None:
    measured(RunFolder(Path(recipe["output"])), metrics=(metric,))
    os._exit(0)


@pytest.mark.slow
def test_a_killed_measurement_goes_on_and_measures_nothing_twice(
    trained: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, recipe = trained
    (tmp_path / "own.py").write_text(COUNTED, encoding="utf-8")
    metric = f"{tmp_path}/own.py:Counted"
    assert children.in_child(measure_in_child, recipe, metric) == killing.SELF_KILLED
    written = sorted(path.parent.name for path in run.evaluations_folder.rglob("measured.json"))
    assert written == ["step-000000001", "step-000000002"]
    series = measured(run, metrics=(metric,))
    assert (tmp_path / "calls").stat().st_size == 3 + 2  # the third was killed, and is measured again
    assert [one.step for one in series.checkpoints] == [1, 2, 3, 4]
    assert len({one.values["counted"] for one in series.checkpoints}) == 4
    unfinished = files.temporary_name(series.checkpoints[2].clips[0])
    unfinished.write_bytes(b"a part")
    os.utime(unfinished, (0, 0))
    again = measured(run, metrics=(metric,))
    assert not unfinished.exists()
    assert (tmp_path / "calls").stat().st_size == 5
    assert again == series
    assert measured(run, "2,4", metrics=(metric,)).checkpoints == [series.checkpoints[1], series.checkpoints[3]]
    store = CheckpointFolder(run.checkpoints_folder)
    for one in series.checkpoints:
        found = store.info(one.step).metrics
        assert (found["eval/counted"], found["eval/loss"]) == (one.values["counted"], one.loss)
    # Other settings are another measurement.
    other = measured(run, "every=4", metrics=(metric,), seed=3)
    assert (tmp_path / "calls").stat().st_size == 6
    assert other.key != series.key
    assert other.checkpoints[0].loss == series.checkpoints[3].loss
    assert other.checkpoints[0].values["counted"] != series.checkpoints[3].values["counted"]
    # Checkpoints have values that can be compared: other settings replace them only where all are measured.
    assert store.info(4).metrics["eval/counted"] == series.checkpoints[3].values["counted"]
    assert "measure all checkpoints alike" in caplog.text
    for more in ({"seed": 3}, {}):
        shown = measured(run, metrics=(metric,), **more)
        assert [store.info(one.step).metrics["eval/counted"] for one in shown.checkpoints] == [
            one.values["counted"] for one in shown.checkpoints
        ]


def test_values_are_those_of_training_and_of_each_checkpoint_alone(trained: Any, tmp_path: Path) -> None:
    """Previews were made of the same prompts and noise, and validated at the same timesteps."""
    run, _ = trained
    series = measured(run)
    told = {event["step"]: event["values"] for event in events.timeline(run.events_file, "metrics")}
    losses = {event["step"]: event["loss"] for event in events.timeline(run.events_file, "validation")}
    assert series.names == ["loss", "likeness-pixels", "closeness-pixels", "motion"]
    for one in series.checkpoints:
        assert {name: one.values[name] for name in told[one.step]} == pytest.approx(told[one.step])
        assert one.loss == pytest.approx(losses.get(one.step, one.loss))
        nearest = one.metrics[1].nearest
        assert set(nearest) == {"00", "01"}
        assert all(name.startswith("footage") for name in nearest.values())
        assert all(path.is_file() for path in one.clips)
    values = {one.step: one.values["likeness-pixels"] for one in series.checkpoints}
    assert series.best["likeness-pixels"] == max(values, key=lambda step: values[step])
    assert series.best["loss"] == min(series.checkpoints, key=lambda one: one.loss).step

    page = tmp_path / "grid.html"
    checkpoint_grid.write(series, page)
    text = page.read_text(encoding="utf-8")
    assert text.count("<video") == 8
    assert "another clip" in text
    assert all(f"{value:.4g}" in text for value in values.values())
    report = html.write(run).read_text(encoding="utf-8")
    assert "Measured alike" in report
    assert all(f"{value:.4g}" in report for value in values.values())


def test_the_best_by_a_mixture_survives_pruning_and_each_reason_has_its_parts(trained: Any, tmp_path: Path) -> None:
    """In training all were kept, the best among them for its mixture."""
    run, _ = trained
    values = {event["step"]: event["values"] for event in events.timeline(run.events_file, "metrics")}
    mixed = {step: 0.7 * v["likeness-pixels"] - 0.3 * v["closeness-pixels"] for step, v in values.items()}
    assert len(set(mixed.values())) == 4
    best, deleted = max(mixed, key=lambda each: mixed[each]), min(mixed, key=lambda each: mixed[each] + (each == 4))
    why = f"the best by {MIXTURE} ({mixed[best]:.6g}: {LIKE} {values[best]['likeness-pixels']:.6g}, {CLOSE} "
    told = events.timeline(run.events_file, "retention")[-1]["kept"]
    assert any(reason.startswith(why) for one in told if one["step"] == best for reason in one["reasons"])

    shutil.copytree(run.checkpoints_folder, tmp_path / "checkpoints")
    store = CheckpointFolder(tmp_path / "checkpoints")
    policy = CheckpointsConfig(keep_last=1, keep_best=KeepBest(metric=MIXTURE, mode="max"))
    pruned = listing.prune(store, policy)
    assert store.steps() == sorted({best, 4}) == [one.step for one in pruned.kept]
    assert listing.best(store, policy).step == best
    assert any(reason.startswith(why) for reason in listing.explain(store, policy, best).now.reasons)
    gone = listing.explain(store, policy, deleted).now.reasons
    assert any(
        reason.startswith(f"not among the best 1 by {MIXTURE} ({mixed[deleted]:.6g}: {LIKE} ") for reason in gone
    )


def test_a_checkpoint_that_vanishes_or_makes_no_pictures_is_left_out_with_a_line(
    trained: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    run, _ = trained
    store = CheckpointFolder(run.checkpoints_folder)
    aside, read = tmp_path / "aside", checkpoint_series.LoadedModel.read

    def vanishing(self: Any, checkpoint: Path, **options: Any) -> None:
        if checkpoint == store.path(2) and checkpoint.exists():
            checkpoint.rename(aside)
        read(self, checkpoint, **options)
        if checkpoint == store.path(3):
            next(self.boundary.denoiser.module.parameters()).data.fill_(torch.nan)

    monkeypatch.setattr(checkpoint_series.LoadedModel, "read", vanishing)
    try:
        with caplog.at_level(logging.INFO, "reelworks"):
            series = measured(run, "1,2,3,4", seed=11)
    finally:
        aside.rename(store.path(2))
    assert [one.step for one in series.checkpoints] == [1, 4]
    assert [each.step for each in series.skipped] == [2, 3]
    for why in ("step 2 is left out: the checkpoint does not exist", "step 3 is left out: the latents hold infinities"):
        assert any(note.startswith(why) for note in series.notes())


BROKEN = """
class Broken:
    name, higher_is_better, requires_reference = "broken", True, False

    def __init__(self, settings):
        pass

    def value(self, clip):
        raise RuntimeError("no luck")
"""


def test_a_damaged_checkpoint_or_metric_costs_nothing_else(trained: Any, tmp_path: Path) -> None:
    run, _ = trained
    lost = next((CheckpointFolder(run.checkpoints_folder).path(4) / "tensors").iterdir())
    lost.rename(tmp_path / "lost")
    try:
        series = measured(run, seed=12, metrics=("motion",))
    finally:
        (tmp_path / "lost").rename(lost)
    assert [one.step for one in series.checkpoints] == [1, 2, 3]
    assert [each.step for each in series.skipped] == [4]
    assert lost.name in series.skipped[0].reason
    (tmp_path / "own.py").write_text(BROKEN, encoding="utf-8")
    with pytest.raises(UserError, match=r"the metric broken failed \(RuntimeError: no luck\)"):
        measured(run, "1", metrics=(f"{tmp_path}/own.py:Broken",))


def test_the_model_is_loaded_once_for_all_checkpoints(trained: Any, monkeypatch: Any) -> None:
    """And every checkpoint has its own weights in it: the loss is that of the checkpoint alone."""
    run, _ = trained
    built, original = [], held_out.LoadedModel.load.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        held_out.LoadedModel,
        "load",
        classmethod(lambda cls, *args, **options: (built.append(1), original(cls, *args, **options))[1]),
    )
    series = measured(run, "1,2,4", metrics=("motion",))
    assert len(built) == 1
    for one in series.checkpoints[:2]:
        alone = held_out.evaluate(EvalRequest(source=run.path, step=one.step, timesteps=0))
        assert one.loss == pytest.approx(alone.validation.loss, rel=1e-6)
    assert len({one.loss for one in series.checkpoints}) == 3


def test_another_network_at_the_same_place_is_another_measurement(trained: Any, tmp_path: Path) -> None:
    """Also one whose files are as large, such as the same network after further training; and if no value is another."""
    run, _ = trained
    (tmp_path / "clip").mkdir()
    weights = tmp_path / "clip" / "model.safetensors"
    asked: dict[str, Any] = {"metrics": ("motion",), "weights": (f"clip={weights.parent}",), "max_clips": 1}
    weights.write_bytes(b"one")
    first = measured(run, **asked)
    assert measured(run, "1", **asked).key == first.key
    weights.write_bytes(b"two")
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1_000_000_000))
    second = measured(run, **asked)
    assert second.key != first.key
    assert second.checkpoints[0].values == first.checkpoints[0].values
    store = CheckpointFolder(run.checkpoints_folder)
    assert {info.measured_on["eval/motion"] for info in store.list()} == {second.key}


def test_clips_that_are_read_otherwise_are_another_measurement(trained: Any) -> None:
    run, _ = trained
    asked: dict[str, Any] = {"metrics": ("motion",), "max_clips": 1}
    first = measured(run, "1", **asked)
    assert measured(run, "1", **asked, overrides=["data.num_workers=1"]).key == first.key
    for other in ('dataset.0.caption="a film of {text}"', 'data.crop="random"', "bucket.0.resolution=48px"):
        assert measured(run, "1", **asked, overrides=[other]).key != first.key
    files = {
        held_out.evaluate(EvalRequest(source=run.path, step=1, timesteps=1, max_clips=1, overrides=overrides)).file()
        for overrides in ((), ("bucket.0.resolution=48px",))
    }
    assert len(files) == 2


def test_a_run_that_was_moved_is_measured_on_its_own_catalog(trained: Any, tmp_path: Path) -> None:
    """The place that its recipe tells may be another run's by now."""
    shutil.copytree(trained[0].path, tmp_path / "moved")
    source = held_out.EvaluatedModel.locate(EvalRequest(source=tmp_path / "moved", step=1))
    assert Path(source.recipe.catalog_folder) == tmp_path / "moved" / "catalog"
    assert measured(RunFolder(tmp_path / "moved"), "1").checkpoints == [
        replace(one, clips=[tmp_path / "moved" / clip.relative_to(trained[0].path) for clip in one.clips])
        for one in measured(trained[0], "1").checkpoints
    ]


@pytest.mark.parametrize("key", ["data_path", "overrides"])
def test_footage_that_is_named_has_a_catalog_of_its_own(trained: Any, tmp_path: Path, footage: Path, key: str) -> None:
    """All clips of the same place too, where otherwise those that are held out are measured."""
    run, named = trained[0], footage if key == "data_path" else [f"dataset.0.path={tmp_path}"]
    source = held_out.EvaluatedModel.locate(EvalRequest(source=run.path, step=1, **{key: named}))
    assert Path(source.recipe.catalog_folder) == run.evaluations_folder / "catalog"


def test_a_metric_is_no_closeness_because_it_names_clips(trained: Any) -> None:
    """Nor has a clip of which it has no value a copy."""
    made = [
        MetricResult(name=name, higher_is_better=True, value=2.0, by_clip=by_clip, nearest={"00": "shape.png"})
        for name, by_clip in (("my-distance", {"00": 20.0}), ("closeness-clip", {}))
    ]
    measured_one = MeasuredCheckpoint(step=1, save_id="", loss=None, metrics=made, clips=[])
    assert measured_one.copied == {}
    made[1].by_clip["00"] = 1.5
    assert measured_one.copied == {0: "shape.png (closeness-clip 1.5)"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"checkpoints": "some"}, "checkpoints-not-understood"),
        ({"checkpoints": "1,9"}, "no-such-checkpoint"),
        ({"checkpoints": "every=7"}, "no-such-checkpoint"),
        ({"step": 1}, "key-without-effect"),
        ({"metrics": ("psnr",)}, "metric-needs-references"),
        ({"metrics": ("likenes",)}, "class-unknown"),
        ({"prompts": Path("nowhere.txt")}, "prompts-unreadable"),
    ],
)
def test_what_does_not_go_together_is_refused(trained: Any, changes: dict[str, Any], code: str) -> None:
    run, _ = trained
    with pytest.raises(UserError) as refused:
        measured(run, **{"checkpoints": "all"} | changes)
    assert refused.value.code == code
    with pytest.raises(UserError, match="no effect"):
        EvalRequest(source=run.path, seed=1)


def test_the_command_prints_the_table_and_the_page(trained: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    from reelworks.commands import main

    run, _ = trained
    page, prompts = tmp_path / "grid.html", tmp_path / "prompts.txt"
    prompts.write_text("a kite\n", encoding="utf-8")
    words = ["eval", run.path, "--checkpoints", "2,4", "--prompts", prompts, "--metric", "motion", "--timesteps", 2]

    def typed(*more: Any) -> str:
        monkeypatch.setattr(sys, "argv", ["reelworks", *map(str, [*words, *more])])
        with pytest.raises(SystemExit) as left:
            main.main()
        assert not left.value.code
        return str(capsys.readouterr().out)

    told = typed("--html", page)
    assert "motion ↑" in told
    assert "loss ↓" in told
    assert str(page) in told
    assert "a kite" in page.read_text(encoding="utf-8")
    value = json.loads(typed("--json"))
    assert [one["step"] for one in value["checkpoints"]] == [2, 4]
    assert value["best"].keys() == {"loss", "motion"}
    assert value["prompts"] == ["a kite"]


@pytest.mark.slow
def test_a_lora_is_shown_on_the_model_of_previews_and_measured_on_its_own(lora: Any, tmp_path: Path) -> None:
    """Each checkpoint's LoRA is put into both, which are loaded once."""
    values, other = (on_file(lora, tmp_path, number) for number in (1, 2))
    values["train"] |= {"max_steps": 2, "learning_rate": 0.05, "ema_decay": 0.0}
    values["checkpoints"] = {"every_steps": 1}
    values["validation"] = {"split": 0.4, "every_steps": 1, "timesteps": [500.0]}
    shown_on = {"weights": other["model"]["weights"], "num_frames": 1, "num_inference_steps": 2, "guidance_scale": 3.0}
    values["samples"] = {"prompts": ["a kite"], "height": 32, "width": 32} | shown_on
    assert children.train(values) == [0], children.output(values)
    run = RunFolder(tmp_path / "run")
    losses = {event["step"]: event["loss"] for event in events.timeline(run.events_file, "validation")}
    series = measured(run, metrics=("likeness-pixels",))
    for one in series.checkpoints:
        path = run.checkpoints_folder / f"step-{one.step:09d}"
        options = GenerateOptions(Shape(1, 32, 32), 24.0, 2, 3.0, series.seed)
        alone = held_out.LoadedModel.load(path, shown=True).generate(["a kite"], options).clips[0][0]
        assert np.array_equal(np.asarray(Image.open(one.clips[0])), alone)
        assert one.loss == pytest.approx(losses[one.step], rel=1e-5)
    first, second = (one.clips[0].read_bytes() for one in series.checkpoints)
    assert first != second


def test_it_is_told_how_many_of_the_clips_that_are_held_out_now_were_trained(
    trained: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever holds out all but a few after the training measures what the network has seen."""
    run, _ = trained
    for overrides, is_told in ((), False), (("validation.split=0.99",), True):
        with of_recipe():
            held_out.EvaluatedModel.locate(EvalRequest(source=run.path, step=1, overrides=overrides)).data()
        assert ("of those that are held out now were trained" in caplog.text) is is_told
