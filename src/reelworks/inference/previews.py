"""Previews: clips that the averaged weights generate into the run folder on schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from traceback import format_exception

import torch

from reelworks.core import annexes, units
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

# Ranks that share weights come to the end of a pass together: after this time, one has failed and the others wait in it.
_LATE_SECONDS = 300.0


def metrics(data: RecipeData, device: torch.device) -> PreviewMetrics | None:
    """Return the metrics of the recipe's previews, which may compare them with its clips; None if it has none."""
    c = data.recipe.samples
    if not c.metrics:
        return None
    return PreviewMetrics.named(c.metrics, c.metric_weights, device, TrainingClips.of_data(data))


def require_measured(recipe: Recipe) -> None:
    """Refuse a metric of keep_best that this training does not measure; warn of one of `eval` whose name is not known.

    Raises:
        UserError: The metric is neither the validation loss nor one of samples.metrics, nor one that is recorded afterwards,
            nor named after the annex of another package, whose observers tell their metrics while they train.
    """
    mirror = recipe.checkpoints.mirror
    best = {"checkpoints.mirror": None if mirror is None else mirror.keep_best}
    best["checkpoints"] = recipe.checkpoints.keep_best
    wanted = {name: place for place, each in best.items() if each is not None for name in mixture.names([each.metric])}
    kinds = registry.all_named(recipe.samples.metrics, "samples.metrics")
    known = ["validation/loss", *(f"samples/{kind.name}" for kind in kinds)]
    recorded = ["eval/loss", *(f"eval/{name}" for name in registry.names())]
    for name, place in wanted.items():
        if name in known + recorded or name.startswith(tuple(f"{of}/" for of in ("vbench", *annexes.names()))):
            continue
        if name.startswith("eval/"):
            guess = nearest(name, recorded)
            logger.warning("%s.keep_best names %s, and no metric of eval is called so; %s", place, name, guess)
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


def _problem(error: Exception) -> str:
    """Return what to tell of an error: of one that no user can mend, also where it came from."""
    return error.problem if isinstance(error, UserError) else "\n  ".join("".join(format_exception(error)).splitlines())


class _CutShort(BaseException):
    """A signal came; no handler of errors may take it for one."""


class _Kind:
    """Previews as a training prepares them."""

    require = staticmethod(require_measured)

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
        measured = self._metrics if self._world.is_main else None
        self._measured_on = "" if measured is None else measured.digest(self._recipe.samples, options)

    def begin(self, now: Pause) -> None:
        """Make the previews of the checkpoint that training goes on from, if it was stopped before they were written."""
        if (now.is_new or now.begins_stage or not self._is_due(now)) and not now.is_over():
            return
        checkpoints, is_written = self._training.checkpoints, self._are_written(now.step)
        names = [f"samples/{kind.name}" for kind in self._metrics.kinds] if self._metrics is not None else []
        measures = bool(names) and not checkpoints.has_metrics(now.step, names)
        if (not is_written or measures) and (made := self._run(now.step, writes=not is_written, measures=measures)):
            checkpoints.record_metrics(now.step, made)

    def metrics(self, now: Pause) -> dict[str, float]:
        """Make the previews that are due, if they are measured; otherwise their failure could cost a checkpoint."""
        return self._run(now.step) if self._metrics is not None and self._is_due(now) else {}

    def after_save(self, now: Pause) -> None:
        """Make the previews that are due, if they are not measured."""
        if self._metrics is None and self._is_due(now):
            self._run(now.step)

    def _is_due(self, now: Pause) -> bool:
        return now.is_over() or progress.is_due(self._recipe.samples.every_steps, now.step)

    def _are_written(self, step: int) -> bool:
        """Whether previews of a step are told, as many as are asked for, and their files are there. Collective."""
        run, count = self._training.folder, len(self._recipe.samples.prompts)
        told = events.stream(run.events_file, "samples") if self._world.is_main else ()
        names = [event["files"] for event in told if event["step"] == step and len(event["files"]) >= count]
        return bool(self._world.broadcast(any(all((run.samples_folder / n).is_file() for n in each) for each in names)))

    def _run(self, step: int, *, writes: bool = True, measures: bool = True) -> dict[str, float]:
        """Generate a clip for every prompt, with the same noise at every step; returns their metrics, on all ranks."""
        generated = self._attempt()
        if generated is None:
            return {}
        if writes and self._world.is_main:
            try:
                self._write(step, generated)
            except Exception as error:  # as of a full disk, or an encoder
                logger.warning("previews could not be written: %s", _problem(error))
        if not measures or self._metrics is None:
            return {}
        measured = self._metrics.values(generated.clips, self._recipe.samples.prompts) if self._world.is_main else []
        self._reports.log(step, measured, self._measured_on)
        values = {f"samples/{m.name}": m.value for m in measured if m.value is not None}
        self._training.checkpoints.measured_on |= dict.fromkeys(values, self._measured_on)
        return self._world.broadcast(values)  # type: ignore[return-value]

    def _attempt(self) -> PipelineOutput | None:
        """Return the previews; None if a rank could not make them, which is told, or a signal cut them short. Collective.

        Raises:
            Exception: What this rank raised, where the others wait for it within a pass of sharded weights.
        """
        if self._training.stops():
            return None
        made: PipelineOutput | None = None
        failed: Exception | None = None
        is_cut = False
        try:
            made = self._generate()
        except Exception as error:  # a lack of memory, or whatever a library raises
            failed = error
            if isinstance(error, UserError) and error.code == "out-of-memory":
                out_of_memory.snapshot(self._world.device, self._training.folder.snapshot_file(self._world.rank))
        except _CutShort:  # by all ranks before the same pass, or by those that have not failed
            is_cut = True
        # A pass with sharded weights is one of all ranks, and who failed in one cannot answer the others before the next.
        if self._training.model.layout.shards > 1:
            if not self._world.meets(_LATE_SECONDS) and failed is not None:
                raise failed
        elif not is_cut:
            self._world.any(failed is not None)
        for problem in filter(None, self._world.gather(failed and _problem(failed))):
            logger.warning("previews could not be generated: %s", problem)
            return None
        return None if self._training.stops() else made

    def _generate(self) -> PipelineOutput:
        prompts, options, model = self._recipe.samples.prompts, self._options, self._training.model
        clips = units.plural(len(prompts), "clip")
        logger.info(f"making previews: {clips} of {options.shape}, {options.to_text()}")
        encoder = model.encoder.loaded()
        shown = preview_model.loaded(self._recipe, model.boundary, encoder, self._world, model.layout)
        with model.state.averaged(), model.sequence.paused(), shown as (recipe, boundary, encoder):
            return diffusers_pipeline.generate(recipe, boundary, encoder, _told(prompts), options, self._before_pass)

    def _before_pass(self) -> None:
        if self._world.any(self._training.stops(alone=True)):  # or a rank has failed
            raise _CutShort

    def _write(self, step: int, generated: PipelineOutput) -> None:
        options, prompts = self._options, self._recipe.samples.prompts
        names, written = [], []
        for index, (frames, sound) in enumerate(generated.written()):
            names.append(f"step-{step:09d}/{index:02d}.{'png' if len(frames) == 1 else 'mp4'}")
            written.append(self._training.folder.samples_folder / names[-1])
            writers.write(written[-1], frames, options.fps, sound)
        self._log.event(
            "samples",
            step=step,
            files=names,
            prompts=prompts,
            by=generated.by,
            num_inference_steps=options.num_inference_steps,
            guidance_scale=options.guidance_scale,
        )
        self._log.show(step, written, prompts)  # last, since an upload may take minutes


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
        parts += [f"{name} skipped: {why}" for name, why in skipped.items()]
        logger.info(f"step {step}  previews: {', '.join(parts)}")
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
        pin = "Its checkpoint is on the disk, and `reelworks checkpoints pin` keeps it"
        state = pin if kept else "It has no checkpoint"
        logger.info(f"step {step}  advice: {found.to_text()}. {state}; training goes on")
