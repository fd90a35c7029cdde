"""Previews: clips that the averaged weights generate into the run folder on schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from reelworks.core import units
from reelworks.core.errors import UserError, nearest
from reelworks.core.log import logger
from reelworks.data.checkpoint import mixture
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run import events
from reelworks.inference.evaluate import registry
from reelworks.inference.evaluate.measure import MetricResult, PreviewMetrics
from reelworks.inference.evaluate.training_clips import TrainingClips
from reelworks.inference.generate import diffusers_pipeline, writers
from reelworks.inference.generate.diffusers_pipeline import PipelineOutput
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.training.assembly import preview_model
from reelworks.training.coverage import stop_advice
from reelworks.training.observers.observer import Pause, StepObserver, Training
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import out_of_memory, progress


def metrics(data: RecipeData, device: torch.device) -> PreviewMetrics | None:
    """Return the metrics of the recipe's previews, which may compare them with its clips; None if it has none."""
    c = data.recipe.samples
    if not c.metrics:
        return None
    return PreviewMetrics.named(c.metrics, c.metric_weights, device, TrainingClips.of_data(data))


def require_measured(recipe: Recipe) -> None:
    """Refuse a metric of keep_best that this training does not measure; warn of one of `eval` whose name is not known.

    Raises:
        UserError: The metric is neither the validation loss nor one of samples.metrics, nor one that is recorded afterwards.
    """
    mirror = recipe.checkpoints.mirror
    best = {"checkpoints.mirror": None if mirror is None else mirror.keep_best}
    best["checkpoints"] = recipe.checkpoints.keep_best
    wanted = {name: place for place, each in best.items() if each is not None for name in mixture.names([each.metric])}
    kinds = registry.all_named(recipe.samples.metrics, "samples.metrics")
    known = ["validation/loss", *(f"samples/{kind.name}" for kind in kinds)]
    recorded = ["eval/loss", *(f"eval/{name}" for name in registry.names())]
    for name, place in wanted.items():
        if name in known or name in recorded or name.startswith("vbench/"):
            continue
        if name.startswith("eval/"):
            guess = nearest(name, recorded)
            logger.warning("checkpoints.keep_best names %s, and no metric of eval is called so; %s", name, guess)
            continue
        add = name.removeprefix("samples/")
        could = name.startswith("samples/") and add in registry.names()
        lacking = could and not registry.named(add, "").requires_reference
        raise UserError(
            f"{name} is not measured in this training",
            code="metric-not-measured",
            field=f"{place}.keep_best.metric",
            value=name,
            remedy=f'add "{add}" to samples.metrics' if lacking else nearest(name, [*known, *recorded]),
        )


def _told(prompts: Sequence[str]) -> Iterator[str]:
    """Yield prompts, and log each of several before its clip is made, which may take minutes."""
    for number, prompt in enumerate(prompts, 1):
        if len(prompts) > 1:
            logger.info("preview %d of %d: %s", number, len(prompts), prompt)
        yield prompt


class _Kind:
    """Previews as a training prepares them."""

    def require(self, recipe: Recipe) -> None:
        """Refuse a metric of keep_best that the training does not measure."""
        require_measured(recipe)

    def prepare(self, data: RecipeData) -> Callable[[Training], StepObserver] | None:
        """Read the files of previews, and refuse metrics that cannot be measured; None for a recipe without prompts."""
        metrics(data, torch.device("cpu"))
        options = GenerateOptions.of_previews(data)
        return None if options is None else lambda training: Previews(training, options)


KIND = _Kind()


class Previews(StepObserver):
    """Generate the recipe's previews; all ranks compute, since weights may be sharded."""

    def __init__(self, training: Training, options: GenerateOptions) -> None:
        self._training, self._options = training, options
        self._recipe, self._world, self._log = training.data.recipe, training.world, training.log
        self._metrics = metrics(training.data, training.world.device)
        self._reports = MetricReports(training)
        self._measured_on = (
            ""
            if self._metrics is None or not self._world.is_main
            else self._metrics.digest(self._recipe.samples, options)
        )

    def begin(self, now: Pause) -> None:
        """Make the previews of the checkpoint that training goes on from, if it was stopped before they were written."""
        within = not now.is_new and not now.begins_stage
        could_lack = now.is_over() or (within and progress.is_due(self._recipe.samples.every_steps, now.step))
        if could_lack and not self._are_made(now.step) and (metrics := self._run(now.step)):
            self._training.checkpoints.record_metrics(now.step, metrics)

    def metrics(self, now: Pause) -> dict[str, float]:
        """Make the previews that are due, if they are measured; otherwise their failure could cost a checkpoint."""
        return self._run(now.step) if self._metrics is not None and self._is_due(now) else {}

    def after_save(self, now: Pause) -> None:
        """Make the previews that are due, if they are not measured."""
        if self._metrics is None and self._is_due(now):
            self._run(now.step)

    def _is_due(self, now: Pause) -> bool:
        return now.is_over() or progress.is_due(self._recipe.samples.every_steps, now.step)

    def _are_made(self, step: int) -> bool:
        """Whether the previews of a step are written, and measured for its checkpoint. Collective."""
        written, checkpoints = {file.stem for file in self._folder(step).glob("*")}, self._training.checkpoints
        wanted = {f"{i:02d}" for i in range(len(self._recipe.samples.prompts))}
        names = [f"samples/{kind.name}" for kind in self._metrics.kinds] if self._metrics is not None else []
        is_measured = not names or checkpoints.has_metrics(step, names)
        return bool(self._world.broadcast(self._world.is_main and written >= wanted)) and is_measured

    def _folder(self, step: int) -> Path:
        return self._training.folder.samples_folder / f"step-{step:09d}"

    def _run(self, step: int) -> dict[str, float]:
        """Generate a clip for every prompt, with the same noise at every step; returns their metrics, on all ranks."""
        generated = self._generate()
        if generated is None:
            return {}
        self._write(step, generated)
        if self._metrics is None:
            return {}
        measured = self._metrics.values(generated.clips, self._recipe.samples.prompts) if self._world.is_main else []
        self._reports.log(step, measured, self._measured_on)
        values = {f"samples/{m.name}": m.value for m in measured if m.value is not None}
        self._training.checkpoints.measured_on |= dict.fromkeys(values, self._measured_on)
        return self._world.broadcast(values)  # type: ignore[return-value]

    def _generate(self) -> PipelineOutput | None:
        """Return the previews; None if they could not be made."""
        prompts, options, model = self._recipe.samples.prompts, self._options, self._training.model
        clips = units.plural(len(prompts), "clip")
        logger.info(f"making previews: {clips} of {options.shape}, {options.to_text()}")
        encoder = model.encoder.loaded()
        shown = preview_model.loaded(self._recipe, model.boundary, encoder, self._world, model.layout)
        try:
            with model.state.averaged(), model.sequence.paused(), shown as (recipe, boundary, encoder):
                return diffusers_pipeline.generate(recipe, boundary, encoder, _told(prompts), options)
        except UserError as error:  # such as a lack of memory
            if error.code == "out-of-memory":
                out_of_memory.snapshot(self._world.device, self._training.folder.snapshot_file(self._world.rank))
            if self._world.size > 1:  # the other ranks may be waiting for this one
                raise
            logger.warning("previews could not be generated: %s", error.problem)
            return None

    def _write(self, step: int, generated: PipelineOutput) -> None:
        """Write the previews on the main rank."""
        options, prompts = self._options, self._recipe.samples.prompts
        if not self._world.is_main:
            return
        names, written = [], []
        for index, (frames, sound) in enumerate(generated.written()):
            path = self._folder(step) / f"{index:02d}.{'png' if len(frames) == 1 else 'mp4'}"
            try:
                writers.write(path, frames, options.fps, sound)
            except UserError as error:
                logger.warning("a preview could not be written: %s", error.problem)
                return
            written.append(path)
            names.append(path.relative_to(self._training.folder.samples_folder).as_posix())
        self._log.show(step, written, prompts)
        self._log.event(
            "samples",
            step=step,
            files=names,
            prompts=prompts,
            by=generated.by,
            num_inference_steps=options.num_inference_steps,
            guidance_scale=options.guidance_scale,
        )


class MetricReports:
    """Log the metrics of previews, and advise to use an earlier step where they tell that training copies."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._advised_step: int | None = None

    def log(self, step: int, measured: Sequence[MetricResult], measured_on: str) -> None:
        """Log the metrics of a step, those that were skipped with the reason; only those of equal `measured_on` are compared."""
        if not measured:
            return
        values = {m.name: m.value for m in measured if m.value is not None}
        skipped = {m.name: m.skipped for m in measured if m.value is None}
        self._training.log.event("metrics", step=step, values=values, skipped=skipped, measured_on=measured_on)
        self._training.log.curves(step, {f"samples/{name}": value for name, value in values.items()})
        parts = [f"{name} {value:.4g}" for name, value in values.items()]
        logger.info(
            f"step {step}  previews: {', '.join([*parts, *(f'{n} skipped: {why}' for n, why in skipped.items())])}"
        )
        if any(name.startswith("likeness-") for name in values):
            self._advise(step)

    def _advise(self, step: int) -> None:
        """Log the advice to use an earlier step, if there is any and it has not been told."""
        run = self._training.folder
        found = stop_advice.of_events(events.timeline(run.events_file, "start", "metrics", "validation"))
        if found is None or found.step == self._advised_step:
            return
        self._advised_step = found.step
        self._training.log.event("stop_advice", step=step, use=found.step, reasons=found.reasons)
        kept = found.step in CheckpointFolder(run.checkpoints_folder).steps()
        state = (
            "its checkpoint is on the disk, and `reelworks checkpoints pin` keeps it"
            if kept
            else "it has no checkpoint"
        )
        logger.info(f"step {step}  advice: {found.to_text()}. {state[0].upper()}{state[1:]}; training goes on")
