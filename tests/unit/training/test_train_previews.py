"""How previews are made where the recipe does not say it, and what becomes of those that cannot be made."""

from __future__ import annotations

import logging
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av
import numpy as np
import pytest
import tiny_recipe
import torch
from PIL import Image
from plan_summaries import bucket, summary
from refused import refused

from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.core.log import event_logger, to_terminal
from reelworks.core.shape import Shape
from reelworks.data.distributed.layout import Layout
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.position import DataPosition, next_epoch
from reelworks.data.run import events
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.inference import previews
from reelworks.inference.evaluate.measure import MetricResult
from reelworks.inference.generate import defaults, diffusers_pipeline, writers
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.inference.previews import MetricReports, Previews
from reelworks.models import factory, registry
from reelworks.models.family import SamplingDefaults
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.models.sequence.sequence_parallel import SequenceParallel
from reelworks.training.assembly import build
from reelworks.training.assembly.build import TrainedModel
from reelworks.training.loop.config import ValidationConfig
from reelworks.training.observers import trackers, validations
from reelworks.training.observers.early_stop import EarlyStop
from reelworks.training.observers.observer import Pause, TrainedStep, Training
from reelworks.training.observers.run_logger import RunLogger
from reelworks.training.observers.validation import Validation
from reelworks.training.plan import plan_report
from reelworks.training.preflight import check
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step.state import TrainState
from reelworks.training.step.train_step import StepResult

CPU = torch.device("cpu")
ALONE = World(0, 1, CPU)


@pytest.fixture(scope="module")
def footage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five upright pictures, two wide ones, and three clips."""
    folder = tmp_path_factory.mktemp("shown")
    for i in range(7):
        Image.new("RGB", (32, 48) if i < 5 else (48, 32), (i, 9, 9)).save(folder / f"{i}.png")
    for i in range(3):
        writers.write_video(folder / f"c{i}.mp4", np.full((6, 32, 48, 3), i, np.uint8), 24.0)
    for file in list(folder.iterdir()):
        file.with_suffix(".txt").write_text("a kite", encoding="utf-8")
    return folder


@pytest.fixture
def data_of(footage: Path, tmp_path: Path) -> Any:
    """Data of a tiny recipe whose `[samples]` is given."""

    def make(model: str = "stdit3-tiny", frames: tuple[int, ...] = (1, 5), **said: Any) -> RecipeData:
        values = tiny_recipe.least(
            output=str(tmp_path / "run"),
            dataset=[{"path": str(footage)}],
            bucket=[{"resolution": "40px", "num_frames": list(frames), "batch_size": 2}],
            buckets={"upscale": True},
            model={"name": model},
            text_encoder={"dim": 16, "max_length": 6},
            validation={"split": 0.0},
            samples={"prompts": ["a kite"]} | said,
        )
        recipe = recipe_file.parse(values)
        dataset.scan_recipe(recipe)
        return RecipeData.open(recipe)

    return make


@pytest.mark.parametrize("frames", [(1,), (1, 5), (5,)])
def test_previews_are_as_what_is_trained_most_and_as_generate_makes_it(
    data_of: Any, tmp_path: Path, frames: tuple[int, ...]
) -> None:
    """Before a run begins, the size is that which `generate` later reads from its plan; clips go before pictures."""
    data = data_of(frames=frames)
    made = GenerateOptions.of_previews(data)
    spec = data.plan_spec(1, 1)
    run = RunFolder(tmp_path / "told")
    run.plan_folder.mkdir(parents=True)
    told = plan_report.summarise(data, spec, data.plan(spec, 0), world=1)
    files.write_json(run.plan_folder / "summary.json", told)
    assert plan_report.read_summary(run) == told
    assert made.shape == defaults.shape(told, data.recipe, picture=False)
    assert made.shape == (Shape(1, 48, 32) if frames == (1,) else Shape(5, 32, 48))
    assert (made.num_inference_steps, made.guidance_scale) == (30, 7.0)


def test_what_a_recipe_says_of_previews_wins(data_of: Any) -> None:
    """Each key by itself; the others stay as they are without it."""
    said = GenerateOptions.of_previews(data_of(num_frames=1, guidance_scale=1.5, num_inference_steps=4))
    assert said.shape == Shape(1, 48, 32)
    assert (said.num_inference_steps, said.guidance_scale) == (4, 1.5)
    assert GenerateOptions.of_previews(data_of(height=64)).shape == Shape(5, 64, 48)
    assert GenerateOptions.of_previews(data_of(prompts=[])) is None
    with pytest.raises(UserError, match=r"samples\.reference = 'none\.png': No such file or directory"):
        GenerateOptions.of_previews(data_of(reference="none.png"))


def test_sizes_fill_whole_patches_where_a_network_does_not_pad(data_of: Any) -> None:
    """Buckets of other tables may have half a patch at an edge; what is said outright is refused with its key."""
    planned = summary(bucket(3, 1, 40, 72))
    assert defaults.shape(planned, data_of().recipe, picture=True) == Shape(1, 40, 72)
    assert defaults.shape(planned, data_of("wan-tiny").recipe, picture=True) == Shape(1, 32, 64)
    assert data_of(height=40).recipe.samples.height == 40
    with pytest.raises(UserError, match=r"samples\.height = 40: this model takes multiples of 16"):
        data_of("wan-tiny", height=40)


def test_every_model_is_sampled_in_some_usual_way() -> None:
    for name, preset in registry.PRESETS.items():
        found = preset.sampling
        assert found.guidance_scale >= 1, name
        assert found.num_inference_steps >= 1, name
    assert registry.PRESETS["flux-schnell"].sampling == SamplingDefaults(1.0, 4)
    assert registry.PRESETS["flux2-tiny"].sampling == SamplingDefaults(4.0, 50)
    assert registry.PRESETS["flux2-klein-9b"].sampling == SamplingDefaults(1.0, 4)


def test_models_that_are_sampled_without_guidance_are_marked_as_distilled() -> None:
    """Guidance was distilled into those, so that training is told of it; Qwen-Image 2.1 needs none as it is."""
    released = {name: preset for name, preset in registry.PRESETS.items() if preset.release is not None}
    without = {name for name, preset in released.items() if preset.sampling.guidance_scale == 1}
    distilled = {name for name, preset in released.items() if preset.release.distilled}
    assert without == distilled | {"qwen-image-2.1", "qwen-image-2.1-edit"}


def begins(data: RecipeData) -> DataPosition:
    return next_epoch(data, data.plan_spec(1, 1), None)[0]


def test_previews_that_cannot_be_made_end_no_training_and_no_start(
    data_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Previews are announced, made and told with their settings; what they raise, such as a lack of memory, is a warning."""

    def fail(*_: Any) -> None:
        av.open(str(tmp_path / "a.mp4"), "w").add_stream("aac", 10_000).codec_context.open()

    fits, too_large = data_of(num_frames=1, num_inference_steps=2), data_of(height=8 * 10**12)
    recipe = fits.recipe
    denoiser = build.denoiser(recipe, CPU)
    state = TrainState.start(denoiser, recipe.train)
    model = TrainedModel(
        DtypeBoundary(denoiser), build.encoder(recipe, CPU), state, None, None, SequenceParallel(), Layout(1, 1), ()
    )
    run = RunFolder(tmp_path / "run")
    at_end, shown_after = Pause(replace(begins(fits), global_step=1), None, lambda: True), []
    uploads = lambda *_: shown_after.append(len(list(events.read(run.events_file, "samples"))))  # noqa: E731
    monkeypatch.setattr(RunLogger, "show", uploads)
    with to_terminal(), RunLogger(run, fits, ALONE, begins(fits), recipe_name="") as log:
        for data in (too_large, fits):
            shown = Previews(
                Training(run, ALONE, data, model, None, None, log, None), GenerateOptions.of_previews(data)
            )
            shown.after_save(at_end)
        assert shown_after == [1], "an upload that is killed loses the pictures of a tracker alone"
        (made,) = run.samples_folder.glob("step-000000001/*")
        shown.begin(at_end)
        (told,) = events.read(run.events_file, "samples")
        assert (told["num_inference_steps"], told["guidance_scale"]) == (2, 7.0)
        made.unlink()
        shown.begin(at_end)
        assert made.exists(), "a training that was killed before the last preview makes them again"
        run.events_file.unlink()
        shown.begin(at_end)
        assert len(list(events.read(run.events_file, "samples"))) == 1, "files without their event are none of a report"
        run.events_file.unlink()
        monkeypatch.setattr(writers, "write", fail)
        shown.begin(at_end)
        assert not run.events_file.exists()
        monkeypatch.setattr(diffusers_pipeline, "generate", fail)
        shown.begin(at_end)
    said = capsys.readouterr().out
    assert re.search(
        r"warning: previews could not be written: Traceback.*in fail\n.*\n  \S*ArgumentError: .*aac", said, re.DOTALL
    )
    assert re.search(r"warning: previews could not be generated: Traceback.*in fail\n", said, re.DOTALL)
    assert "␊" not in said
    assert "warning: previews could not be generated: this shape does not fit into memory" in said
    assert "making previews: 1 clip of 32×48, 2 steps, guidance scale 7\n" in said


def test_metrics_of_previews_that_a_signal_left_no_time_for_reach_the_checkpoint(
    data_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else the checkpoint holds; once it has them, the previews are not made again."""
    data, kept = data_of(metrics=["motion"], every_steps=2), {"validation/loss": 0.5}
    checkpoints = SimpleNamespace(
        has_metrics=lambda step, names: any(name in names for name in kept),
        record_metrics=lambda step, metrics: kept.update(metrics),
    )
    training = Training(RunFolder(tmp_path / "run"), ALONE, data, None, None, None, None, checkpoints)
    shown = Previews(training, GenerateOptions.of_previews(data))
    written = training.folder.samples_folder / "step-000000002" / "00.mp4"
    written.parent.mkdir(parents=True)
    written.touch()
    EventLog(training.folder.events_file).write("samples", step=2, files=["step-000000002/00.mp4"])
    made = []

    def run(step: int, *, writes: bool, measures: bool) -> dict[str, float]:
        made.append((step, writes, measures))
        return {"samples/motion": 1.0} if measures else {}

    monkeypatch.setattr(shown, "_run", run)
    for _ in range(2):
        shown.begin(Pause(replace(begins(data), global_step=2), None, lambda: False))
    assert (made, kept) == ([(2, False, True)], {"validation/loss": 0.5, "samples/motion": 1.0})
    written.unlink()
    shown.begin(Pause(replace(begins(data), global_step=2), None, lambda: False))
    assert made[1:] == [(2, True, False)], "what is measured is not drawn twice into the curves"
    shown.begin(Pause(replace(begins(data), global_step=3), None, lambda: False))
    assert made[2:] == [], "none were due at this step"


def test_a_checkpoint_that_has_metrics_of_previews_alone_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where training ends at it, though the validation was not due there."""
    kept = {"samples/motion": 1.0}
    result = Validation(0.5, {}, 1, {}, "a")
    validator = SimpleNamespace(held_out=[0], run=lambda pool, stops: result)
    monkeypatch.setattr(validations, "Validator", lambda *args, **kwargs: validator)
    checkpoints = SimpleNamespace(
        has_metrics=lambda step, names: any(name in names for name in kept),
        record_metrics=lambda step, metrics: kept.update(metrics),
        measured_on={},
    )
    config = ValidationConfig(every_steps=4)
    recipe = SimpleNamespace(validation=config, has_training_adapter=False)
    quiet = SimpleNamespace(event=lambda *args, **kwargs: None, curves=lambda *args: None)
    model = SimpleNamespace(boundary=None, sequence=None, state=SimpleNamespace(averaged=nullcontext))
    data = SimpleNamespace(recipe=recipe, held_out=lambda: [0])
    training = Training(None, ALONE, data, model, None, None, quiet, checkpoints)
    one = validations.Validations(training, EarlyStop(config))
    one.begin(Pause(SimpleNamespace(global_step=6), None, lambda: True))
    assert kept == {"samples/motion": 1.0, "validation/loss": 0.5}


def test_events_are_written_whatever_is_configured_and_read_along_by_who_asks(data_of: Any, tmp_path: Path) -> None:
    """The run's file has them all; the logger of events has them from DEBUG on, and only on the main rank."""
    data, run, heard = data_of(), RunFolder(tmp_path / "told"), []
    run.create()
    listener = logging.Handler()
    listener.emit = lambda record: heard.append((record.kind, record.fields))
    event_logger.addHandler(listener)
    try:
        for rank, level in ((0, logging.WARNING), (0, logging.DEBUG), (1, logging.DEBUG)):
            event_logger.setLevel(level)
            world = World(rank, 2, CPU)
            with RunLogger(run, data, world, begins(data), recipe_name="") as log:
                log.event("stop", step=rank, reason=str(level))
    finally:
        event_logger.removeHandler(listener)
        event_logger.setLevel(logging.NOTSET)
    assert heard == [("stop", {"step": 0, "reason": "10"})]
    assert [event["reason"] for event in events.read(run.events_file)] == ["30", "10"]


def test_curves_of_parts_of_a_loss_are_means_of_the_steps_since_the_last_point(
    data_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part is noisy; and a part that no step had since has no point. Previews are shown beside them."""
    drawn: dict[str, list[tuple[int, float]]] = {}

    def log(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            drawn.setdefault(name, []).append((step, value))

    shown: list[tuple[object, ...]] = []
    tracker = SimpleNamespace(log=log, show=lambda *what: shown.append(what), close=lambda failed: None)
    monkeypatch.setattr(trackers, "start", lambda *_: [tracker])
    data, run = data_of(), RunFolder(tmp_path / "run")
    run.create()
    first = begins(data)
    with RunLogger(run, data, ALONE, first, recipe_name="") as logger:
        for number in range(1, 21):
            losses = {0: float(number)} if number <= 10 else {0: 50.0}
            result = StepResult(
                applied=True, finite=True, learning_rate=1e-4, flags=cast(Any, None), loss_by_bucket=losses,
                loss_by_range={number // 11: 2.0},
            )  # fmt: skip
            logger.after_step(TrainedStep(replace(first, global_step=number - 1), result, [], 0.1, 0.0))
        logger.show(20, [Path("a.png")], ["a kite"])
    assert shown == [(20, [Path("a.png")], ["a kite"])]
    steps = [event["step"] for event in events.read(run.events_file) if event["kind"] == "step"]
    assert steps == [step for step, _ in drawn["train/learning_rate"]] == [*range(1, 21)]
    (bucket,) = [name for name in drawn if name.startswith("loss_by_bucket/")]
    assert drawn[bucket] == [(10, 5.5), (20, 50.0)]
    assert sorted(points for name, points in drawn.items() if name.startswith("loss_by_timestep/")) == [
        [(10, 2.0)],
        [(20, 2.0)],
    ]


@pytest.mark.parametrize(
    ("metric", "remedy"),
    [
        ("1 * samples/motion - 2 * samples/likenes-pixels", 'did you mean "samples/likeness-pixels"?'),
        ("samples/psnr", 'did you mean "samples/'),  # it needs references, which previews have none of
        ("samples/flicker", 'add "flicker" to samples.metrics'),
        ("validaton/loss", 'did you mean "validation/loss"?'),
    ],
)
@pytest.mark.quick_cases(2)
def test_a_metric_that_training_does_not_measure_is_refused_with_the_nearest(
    data_of: Any, caplog: pytest.LogCaptureFixture, metric: str, remedy: str
) -> None:
    """One of `eval` that nobody knows may be a class of the user's own: it is a warning."""

    def best(text: str) -> Recipe:
        recipe = data_of(metrics=["likeness-pixels", "motion"]).recipe
        return recipe_file.parse(recipe.model_dump() | {"checkpoints": {"keep_best": {"metric": text}}})

    with refused("metric-not-measured", "checkpoints.keep_best.metric", says=remedy):
        previews.require_measured(best(metric))
    mirrored = best("validation/loss").model_dump()
    mirrored["checkpoints"]["mirror"] = {"url": "elsewhere", "keep_best": {"metric": metric}}
    with refused("metric-not-measured", "checkpoints.mirror.keep_best.metric", says=remedy):
        previews.require_measured(recipe_file.parse(mirrored))
    for known in ("validation/loss", "1 * samples/motion + 2 * eval/loss", "vbench/dynamic_degree", "eval/fid-clip"):
        previews.require_measured(best(known))
    assert not caplog.records
    previews.require_measured(best("eval/likenes-pixels"))
    mirrored["checkpoints"]["mirror"]["keep_best"]["metric"] = "eval/likenes-pixels"
    previews.require_measured(recipe_file.parse(mirrored))
    for record, table in zip(caplog.records, ("checkpoints", "checkpoints.mirror"), strict=True):
        assert record.getMessage().startswith(f"{table}.keep_best names eval/likenes-pixels")
        assert 'did you mean "eval/likeness-pixels"?' in record.getMessage()


@pytest.mark.parametrize(("stages", "advised_at", "use"), [(1, 6, 3), (2, 8, 5)])
def test_the_step_to_use_is_told_once_when_only_copying_rises(
    data_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], stages: int, advised_at: int, use: int
) -> None:
    """As a line and as an event, and again only for another step; also by what an earlier start of the stage measured."""
    data, run = data_of(), RunFolder(tmp_path / "run")
    run.create()

    def measured(reports: MetricReports, step: int) -> None:
        rising = {"likeness-pixels": min(step, 3) / 4, "closeness-pixels": 0.5 + max(step - 3, 0) / 4}
        reports.log(step, [MetricResult(name, True, value) for name, value in rising.items()], "a")

    for steps in (range(1, 5), range(5, 9)):
        stage = {"name": "b", "step": 4} if stages > 1 and steps[0] > 4 else {"name": "a", "step": 0}
        EventLog(run.events_file).write("start", step=steps[0] - 1, resumed_from=steps[0] - 1, stage=stage)
        with to_terminal(), RunLogger(run, data, ALONE, begins(data), recipe_name="") as log:
            reports = MetricReports(Training(run, ALONE, data, None, None, None, log, None))
            for step in steps:
                measured(reports, step)
    (told,) = events.read(run.events_file, "stop_advice")
    assert (told["step"], told["use"]) == (advised_at, use)
    said = capsys.readouterr().out
    assert (
        said.count(f"advice: use step {use}: likeness has not risen in the 3 measurements since (0.75, then at most")
        == 1
    )
    assert "It has no checkpoint; training goes on" in said


def test_weights_that_are_not_there_are_told_before_a_network_is_built(
    data_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing text encoder is not told after minutes of reading the model."""
    data = data_of()
    monkeypatch.delattr(factory, "build_denoiser")
    named = {"name": "t5", "weights": str(tmp_path / "nowhere")}
    recipe = recipe_file.parse(data.recipe.model_dump() | {"text_encoder": named})
    with refused("weights-not-found", "text_encoder.weights", says="nowhere'"):
        check.check_recipe(recipe, data.table)
