"""Measure several checkpoints of a run alike: held-out loss, and metrics of clips of fixed prompts with the same noise.

The model is loaded once, and takes the weights of one checkpoint after the other. What is measured of a checkpoint is written
before the next one, and is not measured again by the same settings: `evaluations/checkpoints-KEY/step-000000500/`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from reelworks.core import digests, files, machine, results, units, user_files
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.core.shape import Shape
from reelworks.data.checkpoint import locate
from reelworks.data.checkpoint.folder import CheckpointFolder, CheckpointInfo
from reelworks.data.checkpoint.manifest import BadCheckpoint
from reelworks.data.checkpoint.verify import damage
from reelworks.data.distributed import mesh
from reelworks.data.distributed.mesh import World
from reelworks.data.run.folder import RunFolder
from reelworks.inference.evaluate import held_out, likeness, report
from reelworks.inference.evaluate.held_out import EvaluatedModel
from reelworks.inference.evaluate.measure import MetricResult, PreviewMetrics
from reelworks.inference.evaluate.request import EvalRequest
from reelworks.inference.evaluate.training_clips import TrainingClips
from reelworks.inference.generate import vbench_files, writers
from reelworks.inference.generate.load_run import LoadedModel
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import components
from reelworks.training.coverage import stop_advice
from reelworks.training.coverage.stop_advice import StopAdvice
from reelworks.training.observers.validation import Validation, digest_of_loss
from reelworks.training.recipe import preview_model, recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

_VERSION = 1  # raise it when the same settings give other values
_RESULT = "measured.json"
_METRIC = "eval/"  # before its name, among the metrics of a checkpoint
# Errors of one checkpoint, after which the others are measured.
_OF_ONE = ("no-such-checkpoint", "checkpoint-bad", "frames-not-finite")


@dataclass(frozen=True)
class MeasuredCheckpoint:
    """Measurements of a checkpoint.

    Attributes:
        save_id: Id of its save, which another save of the step does not have.
        loss: Held-out loss; None if no clip is held out.
        metrics: Those of the generated clips.
        clips: Files of these, one for each prompt.
        copied: Clips that look like copies of a training clip, by number, with its name and their closeness.
    """

    JSON_KEYS: ClassVar = ("step", "save_id", "loss", "metrics", "clips", "copied")

    step: int
    save_id: str
    loss: float | None
    metrics: list[MetricResult]
    clips: list[Path]

    @property
    def values(self) -> dict[str, float]:
        """Return what was measured, by name; a loss that is not finite is none."""
        loss = {} if self.loss is None or not math.isfinite(self.loss) else {"loss": self.loss}
        return loss | {m.name: m.value for m in self.metrics if m.value is not None}

    @property
    def copied(self) -> dict[int, str]:
        """Clips that look like copies of a training clip, by number, with its name and their closeness."""
        found: dict[int, str] = {}
        for metric in (metric for metric in self.metrics if metric.name.startswith("closeness-")):
            for clip, source in metric.nearest.items():
                if (value := metric.by_clip.get(clip, 0.0)) > likeness.COPIED:
                    found.setdefault(int(clip), f"{source} ({metric.name} {value:.3g})")
        return found


@dataclass(frozen=True)
class SkippedCheckpoint:
    """A checkpoint that was not measured, and why."""

    step: int
    reason: str


@dataclass(frozen=True)
class CheckpointSeries:
    """Measurements of several checkpoints of a run.

    Attributes:
        weights: Averaged ("ema") or trained ("model") weights.
        key: Digest of all settings: equal ones can be compared.
        shape: Frames, height and width of the generated clips.
        seed: Seed of their noise.
        checkpoints: By ascending step.
        best: Step of the best value of each metric.
        advice: The step to use, if later ones only copy more; None if there is nothing to advise.
    """

    JSON_KEYS: ClassVar = (
        *("run", "weights", "key", "prompts", "seed", "shape", "checkpoints", "skipped", "best", "advice"),
    )

    run: Path
    weights: Literal["ema", "model"]
    key: str
    prompts: list[str]
    seed: int
    clip_shape: Shape
    checkpoints: list[MeasuredCheckpoint]
    skipped: list[SkippedCheckpoint] = field(default_factory=list)

    @property
    def shape(self) -> str:
        """Frames, height and width of the generated clips."""
        return str(self.clip_shape)

    @property
    def names(self) -> list[str]:
        """Names of all that was measured, the loss first."""
        return list(dict.fromkeys(name for one in self.checkpoints for name in one.values))

    @property
    def higher_is_better(self) -> dict[str, bool]:
        """Return the direction of each metric; that of the loss is down."""
        found = {m.name: m.higher_is_better for one in self.checkpoints for m in one.metrics}
        return {name: found.get(name, False) for name in self.names}

    @property
    def best(self) -> dict[str, int]:
        """Step of the best value of each metric, the earlier one of equal values."""
        found = {}
        for name, higher in self.higher_is_better.items():
            values = [(one.step, one.values[name]) for one in self.checkpoints if name in one.values]
            found[name] = min(values, key=lambda pair: -pair[1] if higher else pair[1])[0]
        return found

    @property
    def advice(self) -> StopAdvice | None:
        """The step to use, if later ones only copy more."""
        return stop_advice.advise(stop_advice.points_of({one.step: one.values for one in self.checkpoints}))

    def notes(self) -> list[str]:
        """Return in sentences what was left out, and why."""
        lines = [f"step {each.step} is left out: {each.reason}" for each in self.skipped]
        reasons = dict.fromkeys((m.name, m.skipped) for one in self.checkpoints for m in one.metrics if m.skipped)
        return [*lines, *(f"{name}: skipped: {reason}" for name, reason in reasons)]

    def to_text(self) -> list[str]:
        """Return in sentences what was left out, which clips look like copies, and which step to use."""
        copies = []
        for one in self.checkpoints:
            if copied := one.copied:
                first = min(copied)
                more = f", and {len(copied) - 1} more" if len(copied) > 1 else ""
                copies.append(f"step {one.step}: {self.prompts[first]!r} looks copied: {copied[first]}{more}")
        advice = self.advice
        return [*self.notes(), *copies, *([] if advice is None else [advice.to_text()])]

    def file(self) -> Path:
        """Return the file in the run folder; the same settings have the same file."""
        return RunFolder(self.run).evaluations_folder / f"checkpoints-{self.key}.json"


def measure(request: EvalRequest, on_clip: Callable[[int, int], None] = lambda done, total: None) -> CheckpointSeries:
    """Measure the checkpoints of a run that a request names, and record the values as their metrics `eval/NAME`.

    A checkpoint that a training deletes meanwhile is left out with a line.

    Raises:
        UserError: There are no such checkpoints, no prompts, or a metric is unknown.
    """
    assert request.source is not None
    assert request.checkpoints is not None
    run, _ = locate.locate(request.source)
    store = CheckpointFolder(run.checkpoints_folder)
    infos = {info.step: info for info in store.list()}
    steps = chosen(request.checkpoints, sorted(infos))
    recipe = recipe_file.of_run(run, steps[-1], request.overrides)
    recipe = held_out.measuring(_with_prompts(recipe, request), request)
    with mesh.join() as world:
        if world.size > 1:
            raise UserError(
                "checkpoints are measured by one process",
                code="one-process",
                field="WORLD_SIZE",
                value=world.size,
                remedy="start the command without torchrun",
            )
        series = _Series.plan(request, run, recipe, steps[-1])
        measured, skipped = series.run(store, [infos[step] for step in steps], world, on_clip)
    weights: Literal["ema", "model"] = "model" if request.raw_weights else "ema"
    options = series.options
    return CheckpointSeries(
        run.path, weights, series.key, recipe.samples.prompts, options.seed, options.shape, measured, skipped
    )


def chosen(text: str, steps: Sequence[int]) -> list[int]:
    """Return the steps that a text names, "all", "500,1000" or "every=500", of those that have a checkpoint.

    Raises:
        UserError: It is none of these, or names a step without a checkpoint, or none.

    Examples:
        >>> chosen("every=500", [250, 500, 750, 1000])
        [500, 1000]
    """
    every, parts = text.removeprefix("every="), [part.strip() for part in text.split(",")]
    if text == "all":
        found = list(steps)
    elif text != every and every.isdecimal() and int(every):
        found = [step for step in steps if step % int(every) == 0]
    elif all(part.isdecimal() for part in parts):
        found = sorted({int(part) for part in parts})
    else:
        raise UserError(
            "not a choice of checkpoints",
            code="checkpoints-not-understood",
            field="checkpoints",
            value=text,
            remedy="write all, steps such as 500,1000, or every=500",
        )
    missing = [step for step in found if step not in steps]
    if missing or not found:
        raise UserError(
            "there is no checkpoint of this step" if missing else "it names no checkpoint",
            code="no-such-checkpoint",
            field="checkpoints",
            value=missing[0] if missing else text,
            remedy=f"steps with a checkpoint: {', '.join(map(str, steps)) or 'none'}",
        )
    return found


def default_metrics(weights: Mapping[str, str], num_frames: int) -> list[str]:
    """Return the metrics that are measured by default: likeness and closeness by all networks that have weights, and others."""
    kinds = [*(kind for kind in ("dinov2", "clip") if kind in weights), "pixels"]
    names = [f"{what}-{kind}" for kind in kinds for what in ("likeness", "closeness")]
    return [*names, *(["clip-score"] if "clip" in weights else []), *(["motion"] if num_frames > 1 else [])]


def _with_prompts(recipe: Recipe, request: EvalRequest) -> Recipe:
    """Return the recipe with the prompts to generate from."""
    prompts = recipe.samples.prompts
    if request.prompts is not None:
        prompts = vbench_files.prompts(request.prompts, "--prompts")
    if not prompts:
        raise UserError(
            "the recipe has no prompts to generate clips from",
            code="prompts-not-given",
            field="samples.prompts",
            remedy="name a text file with a prompt in each line: --prompts FILE",
        )
    return recipe.model_copy(update={"samples": recipe.samples.model_copy(update={"prompts": prompts})})


@dataclass(frozen=True)
class _Series:
    """The data and settings on which the measurements of a run's checkpoints depend."""

    request: EvalRequest
    source: EvaluatedModel
    data: RecipeData
    options: GenerateOptions
    metrics: PreviewMetrics
    key: str

    @classmethod
    def plan(cls, request: EvalRequest, run: RunFolder, recipe: Recipe, step: int) -> _Series:
        """Open the data, and find out how clips are generated and measured; loads no network."""
        source = EvaluatedModel(recipe, run.path, step, "model" if request.raw_weights else "ema")
        data = source.data()
        options = GenerateOptions.of_previews(data)
        assert options is not None, "there are prompts"
        if request.seed is not None:
            options = replace(options, seed=request.seed)
        weights = {**recipe.samples.metric_weights, **report.weights_of(request.weights)}
        typed = request.metrics
        names = [*typed] or recipe.samples.metrics or default_metrics(weights, options.shape.num_frames)
        training = TrainingClips.of_data(data)
        device = machine.default_device()
        origin = "--metric" if typed else "samples.metrics"
        metrics = PreviewMetrics.named(names, weights, device, training, origin)
        alike = metrics.digest(data.recipe.samples, options)
        loss = digest_of_loss(recipe, data, data.held_out())
        key = digests.digest_json([_VERSION, source.weights, alike, loss])[:8]
        return cls(request, source, data, options, metrics, key)

    @property
    def folder(self) -> Path:
        """Folder of the generated clips and of each checkpoint's measurements."""
        assert self.source.run is not None
        return RunFolder(self.source.run).evaluations_folder / f"checkpoints-{self.key}"

    def run(
        self,
        store: CheckpointFolder,
        infos: Sequence[CheckpointInfo],
        world: World,
        on_clip: Callable[[int, int], None],
    ) -> tuple[list[MeasuredCheckpoint], list[SkippedCheckpoint]]:
        """Measure what is not measured yet, and return all measurements, and the checkpoints without any."""
        found = {info.step: known for info in infos if (known := self._known(info)) is not None}
        other = self._measured_otherwise(store, {info.step for info in infos})
        for one in found.values():
            self._record(store, one, other)
        if found:
            are = units.verb(len(found), "are")
            logger.info("%d of %s %s measured already", len(found), units.plural(len(infos), "checkpoint"), are)
        files.sweep_below(self.folder)  # clips that killed measurements did not finish
        left = [info for info in infos if info.step not in found]
        skipped = [SkippedCheckpoint(info.step, why) for info in left if (why := damage(info.path))]
        left = [info for info in left if info.step not in {each.step for each in skipped}]
        if left:
            source = replace(self.source, step=left[-1].step)
            with held_out.opened(source, self.data, world, self.request, on_clip) as (model, loss):
                shown = self._shown(model, left[-1])
                for number, info in enumerate(left, 1):
                    try:
                        found[info.step] = one = self._measure(info, model, shown, loss)
                    except UserError as error:
                        if error.code not in _OF_ONE:
                            raise
                        skipped.append(SkippedCheckpoint(info.step, error.problem))
                        continue
                    self._record(store, one, other)
                    measured = ", ".join(f"{name} {value:.4g}" for name, value in one.values.items())
                    logger.info("step %d (%d of %d): %s", info.step, number, len(left), measured)
        return [found[step] for step in sorted(found)], skipped

    def _measured_otherwise(self, store: CheckpointFolder, steps: Set[int]) -> Set[str]:
        """Return the metrics that checkpoints beside some steps have of other settings: they cannot be compared."""
        found: dict[str, int] = {}
        for info in store.list():
            if info.step not in steps:
                had = [n for n, value in info.metrics.items() if n.startswith(_METRIC) and math.isfinite(value)]
                found |= {name: info.step for name in had if info.measured_on.get(name) != self.key}
        if found:
            logger.warning(
                "step %d has values of %s of other settings, so those of this measurement are not added to the metrics, of which "
                "keep_best compares those of equal settings; measure all checkpoints alike to replace them",
                max(found.values()),
                ", ".join(found),
            )
        return found.keys()

    def _shown(self, model: LoadedModel, first: CheckpointInfo) -> LoadedModel:
        """Return the model that clips are generated with: that of the recipe's previews."""
        encoder = model.encoder.loaded()
        if not self.data.recipe.samples.has_model:
            return replace(model, encoder=encoder)
        conditioning = components.conditioning(preview_model.recipe_of(self.data.recipe).model)
        encoder = replace(encoder, conditioning=conditioning)
        return LoadedModel.load(first.path, averaged=not self.request.raw_weights, shown=True, encoders=encoder)

    def _measure(
        self, info: CheckpointInfo, model: LoadedModel, shown: LoadedModel, loss: Callable[[], Validation | None]
    ) -> MeasuredCheckpoint:
        """Measure a checkpoint, and write the result and its clips."""
        averaged, prompts = not self.request.raw_weights, self.data.recipe.samples.prompts
        for each in (model, shown) if shown.denoiser is not model.denoiser else (model,):
            each.read(info.path, averaged=averaged)
        validation = loss()
        generated = shown.generate(prompts, self.options)
        metrics = self.metrics.measured(generated.clips, prompts)
        folder = self._folder_of(info.step)
        clips = [folder / f"{i:02d}.{'png' if len(c) == 1 else 'mp4'}" for i, c in enumerate(generated.clips)]
        for path, (frames, sound) in zip(clips, generated.written(), strict=True):
            writers.write(path, frames, self.options.fps, sound)
        save_id, held_out_loss = info.manifest.save_id, None if validation is None else validation.loss
        one = MeasuredCheckpoint(info.step, save_id, held_out_loss, metrics, clips)
        names = {"clips": [path.name for path in clips]}
        files.write_for("RUN", folder / _RESULT, files.to_json(results.as_json(one) | names, indent=2).encode())
        return one

    def _record(self, store: CheckpointFolder, one: MeasuredCheckpoint, other: Set[str]) -> None:
        """Add values to the metrics of a checkpoint, unless it has them of these settings, but those that others have of others."""
        named = {f"{_METRIC}{name}": value for name, value in one.values.items()}
        values = {name: value for name, value in named.items() if name not in other}
        try:
            present = store.info(one.step)
            had = {name: (value, present.measured_on.get(name)) for name, value in present.metrics.items()}
            if any(had.get(name) != (value, self.key) for name, value in values.items()):
                store.record_metrics(one.step, values, dict.fromkeys(values, self.key))
        except BadCheckpoint:  # deleted meanwhile
            logger.info("step %d was deleted meanwhile; its values are kept in the folder of evaluations", one.step)

    def _folder_of(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def _known(self, info: CheckpointInfo) -> MeasuredCheckpoint | None:
        """Return what was measured of a checkpoint before; None if it was not, or another save of its step was."""
        folder = self._folder_of(info.step)
        try:
            value = user_files.read_json(folder / _RESULT)
            clips, metrics = [folder / name for name in value["clips"]], [MetricResult(**m) for m in value["metrics"]]
            found = MeasuredCheckpoint(value["step"], value["save_id"], value["loss"], metrics, clips)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return found if found.save_id == info.manifest.save_id and all(path.exists() for path in clips) else None
