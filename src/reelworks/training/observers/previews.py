"""Previews: clips that the averaged weights generate into the run folder on schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from reelworks.core import units
from reelworks.core.errors import UserError, nearest
from reelworks.core.log import logger
from reelworks.core.shape import Shape
from reelworks.data.checkpoint import mixture
from reelworks.data.distributed.layout import Layout
from reelworks.data.distributed.mesh import World
from reelworks.data.run.folder import RunFolder
from reelworks.inference.evaluate import registry
from reelworks.inference.evaluate.measure import PreviewMetrics
from reelworks.inference.evaluate.training_clips import TrainingClips
from reelworks.inference.generate import conditions, defaults, diffusers_pipeline, writers
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.diffusers_pipeline import PipelineOutput
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models.api import DenoiserInputs
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.models.sequence.sequence_parallel import SequenceParallel
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.observers import preview_model
from reelworks.training.observers.preview_model import PreviewModel
from reelworks.training.observers.run_logger import RunLogger
from reelworks.training.recipe import validation
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import out_of_memory
from reelworks.training.step.state import TrainState


def options(data: RecipeData) -> GenerateOptions | None:
    """Return the settings of the recipe's previews, with all their files read; None if it has no prompts."""
    recipe, c = data.recipe, data.recipe.samples
    metrics(data, torch.device("cpu"))  # refuses those that cannot be measured
    if not c.prompts:
        return None
    num_frames, height, width = c.num_frames, c.height, c.width
    if not (num_frames and height and width):  # take what is missing from the bucket that is trained most
        most = defaults.shape_of(data, picture=num_frames == 1)
        num_frames, height, width = num_frames or most.num_frames, height or most.height, width or most.width
    shape = Shape(num_frames, height, width)
    validation.require_given_frames(recipe.model, c.reference, c.last_frame, shape.num_frames)
    sampled = defaults.sampled(recipe)
    reference = None if c.reference is None else conditions.read(Path(c.reference), shape, 1, "samples.reference")
    last = None if c.last_frame is None else conditions.read(Path(c.last_frame), shape, 1, "samples.last_frame")
    inpaint = None if c.inpaint is None else conditions.companion(Path(c.inpaint), shape, "samples.inpaint")
    return GenerateOptions(
        shape,
        defaults.fps(recipe),
        sampled.num_inference_steps,
        sampled.guidance_scale,
        recipe.seed,
        Conditions(reference, last_frame=last, inpaint=inpaint),
        conditions.companions(c.companions, shape, "samples.", recipe),
        guided_channels=sampled.guided_channels,
        image_guidance_scale=sampled.image_guidance_scale,
    )


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
    best = [recipe.checkpoints.keep_best, None if mirror is None else mirror.keep_best]
    kinds = registry.all_named(recipe.samples.metrics, "samples.metrics")
    known = ["validation/loss", *(f"samples/{kind.name}" for kind in kinds)]
    recorded = ["eval/loss", *(f"eval/{name}" for name in registry.names())]
    for name in mixture.names(each.metric for each in best if each is not None):
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
            field="checkpoints.keep_best.metric",
            value=name,
            remedy=f'add "{add}" to samples.metrics' if lacking else nearest(name, [*known, *recorded]),
        )


def _told(prompts: Sequence[str]) -> Iterator[str]:
    """Yield prompts, and log each of several before its clip is made, which may take minutes."""
    for number, prompt in enumerate(prompts, 1):
        if len(prompts) > 1:
            logger.info("preview %d of %d: %s", number, len(prompts), prompt)
        yield prompt


@dataclass(frozen=True)
class Previewer:
    """Generate the recipe's previews; all ranks compute, since weights may be sharded."""

    recipe: Recipe
    boundary: DtypeBoundary[DenoiserInputs]
    encoder: FrozenEncoders
    state: TrainState
    world: World
    run_folder: RunFolder
    options: GenerateOptions | None
    sequence: SequenceParallel | None = None  # paused here, as any size may be generated
    metrics: PreviewMetrics | None = None
    layout: Layout | None = None  # by which ranks share the network

    def exist(self, step: int) -> bool:
        """Whether all previews of a step exist; equal on all ranks."""
        return bool(self.world.broadcast(self.world.is_main and self._are_written(step)))

    def _are_written(self, step: int) -> bool:
        written = {file.stem for file in self._folder(step).glob("*")}
        return written.issuperset(f"{i:02d}" for i in range(len(self.recipe.samples.prompts)))

    def _folder(self, step: int) -> Path:
        return self.run_folder.samples_folder / f"step-{step:09d}"

    def run(self, step: int, log: RunLogger) -> dict[str, float]:
        """Generate a clip for every prompt, with the same noise at every step; returns their metrics, on all ranks."""
        generated = self._generate()
        if generated is None:
            return {}
        self._write(step, generated, log)
        if self.metrics is None:
            return {}
        measured = self.metrics.values(generated.clips, self.recipe.samples.prompts) if self.world.is_main else []
        log.preview_metrics(step, measured)
        values = {f"samples/{m.name}": m.value for m in measured if m.value is not None}
        return self.world.broadcast(values)  # type: ignore[return-value]

    def _generate(self) -> PipelineOutput | None:
        """Return the previews; None if there are none to make, or they could not be made."""
        options, prompts = self.options, self.recipe.samples.prompts
        if options is None:
            return None
        clips = units.plural(len(prompts), "clip")
        logger.info(f"making previews: {clips} of {options.shape}, {options.to_text()}")
        try:
            paused = nullcontext() if self.sequence is None else self.sequence.paused()
            with self.state.averaged(), paused, self._shown() as (recipe, boundary, encoder):
                told = _told(prompts)
                return diffusers_pipeline.generate(recipe, boundary, encoder, told, options)
        except UserError as error:  # such as a lack of memory
            if error.code == "out-of-memory":
                out_of_memory.snapshot(self.world.device, self.run_folder.snapshot_file(self.world.rank))
            if self.world.size > 1:  # the other ranks may be waiting for this one
                raise
            logger.warning("previews could not be generated: %s", error.problem)
            return None

    def _shown(self) -> AbstractContextManager[PreviewModel]:
        return preview_model.loaded(self.recipe, self.boundary, self.encoder.loaded(), self.world, self.layout)

    def _write(self, step: int, generated: PipelineOutput, log: RunLogger) -> None:
        """Write the previews on the main rank."""
        options, prompts = self.options, self.recipe.samples.prompts
        assert options is not None
        if not self.world.is_main:
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
            names.append(path.relative_to(self.run_folder.samples_folder).as_posix())
        log.previews(step, written, prompts)
        log.event(
            "samples",
            step=step,
            files=names,
            prompts=prompts,
            by=generated.by,
            num_inference_steps=options.num_inference_steps,
            guidance_scale=options.guidance_scale,
        )
