"""Held-out loss of a run's checkpoint, or of the model that a recipe begins with, by bucket and timestep."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from reelworks.core import digests, results, units
from reelworks.core.errors import UserError, first_few
from reelworks.core.log import logger
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.scan.scan import ScanProgress
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.distributed import mesh
from reelworks.data.distributed.mesh import World
from reelworks.data.loader import segment_record
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.media.patience import AWAY_SECONDS
from reelworks.data.run import records
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.records import RecordError
from reelworks.inference.evaluate.request import EvalRequest
from reelworks.inference.generate.load_run import LoadedModel
from reelworks.models.attention import attention
from reelworks.training.assembly import build
from reelworks.training.encoding import stored_batches
from reelworks.training.loop import resume
from reelworks.training.observers.validation import Validation, Validator, digest_of
from reelworks.training.precompute import encoding
from reelworks.training.recipe import chosen_checkpoint, dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe


@dataclass(frozen=True)
class EvaluatedModel:
    """Weights to measure, and the recipe that names the clips.

    Attributes:
        run: Folder of the checkpoint's run; None for the weights that a recipe begins with.
        step: Step of the checkpoint; 0 without a run.
        weights: Averaged ("ema") or trained ("model") weights of the checkpoint, or those of the recipe ("initial").
        held_out: Measure on held-out clips only; otherwise on all clips of the datasets.
    """

    recipe: Recipe
    run: Path | None
    step: int
    weights: Literal["ema", "model", "initial"]
    held_out: bool = True
    JSON_KEYS: ClassVar = ("run", "step", "weights", "seed", "held_out")

    @classmethod
    def locate(cls, request: EvalRequest) -> EvaluatedModel:
        """Find what a request names: a run (its newest checkpoint, its best one, or that of a step), a checkpoint, a recipe.

        With `data_path`, all clips of that folder or list are measured in place of the recipe's held-out ones. Footage that lies
        elsewhere by now, as an override says, has a catalog of its own: the run's has the place where it was.
        """
        assert request.source is not None
        run, step = None, 0
        weights: Literal["ema", "model", "initial"] = "initial"
        if request.is_recipe:
            recipe = recipe_file.load(request.source, request.overrides)
        else:
            run, step = chosen_checkpoint.locate(request.source, step=request.step, best=request.best)
            weights = "model" if request.raw_weights else "ema"
            recipe = recipe_file.of_run(run, step, request.overrides)
        if request.data_path is not None:
            recipe = recipe_file.on_footage(recipe, request.data_path)
        differ = run is not None and dataset.sources(recipe) != dataset.sources(recipe_file.of_run(run, step))
        if run is not None and (differ or request.data_path is not None):
            recipe = recipe.model_copy(update={"catalog": str(run.evaluations_folder / "catalog")})
        return cls(
            measuring(recipe, request), None if run is None else run.path, step, weights, request.data_path is None
        )

    @property
    def seed(self) -> int:
        """Seed of the noise."""
        return self.recipe.seed

    def data(self, on_scan: Callable[[ScanProgress], None] | None = None) -> RecipeData:
        """Open the clips; a run's catalog is taken as it is, others are brought up to date."""
        if self.run is None or self.recipe.catalog == str(RunFolder(self.run).evaluations_folder / "catalog"):
            dataset.scan_recipe(self.recipe, on_scan)
        data = RecipeData.open(self.recipe)
        if not self.held_out:
            return replace(data, spec=replace(data.spec, split=1.0))
        if self.run is not None and (trained := _trained(RunFolder(self.run), data)):
            logger.warning(
                f"{units.plural(trained, 'clip')} of those that are held out now {units.verb(trained, 'were')} trained by this run, since "
                "near-duplicates were measured or the clips changed after it: the loss is not that of clips that it never saw"
            )
        return data

    def load(self, recipe: Recipe, world: World) -> LoadedModel:
        """Load the network, with encoders that are loaded when they are needed."""
        encoders = build.lazy_encoder(recipe, world.device)
        if self.run is None:
            return LoadedModel.begin(recipe, encoders)
        path = CheckpointFolder(RunFolder(self.run).checkpoints_folder).path(self.step)
        return LoadedModel.load(path, averaged=self.weights == "ema", encoders=encoders)


def _trained(run: RunFolder, data: RecipeData) -> int:
    """Return how many held-out clips the records of a run's newest epoch have among those that it trains."""
    keys, planned = records.keys(run), [np.zeros(0, dtype=np.uint64)]
    for key in (key for key in keys if key[:2] == keys[-1][:2]):
        with suppress(RecordError):
            record = records.read(run, key)
            planned.append(segment_record.recorded_catalog(run, record.about).uids()[record.ordinal])
    return int(np.isin(data.held_out().uid, np.concatenate(planned)).sum())


def measuring(recipe: Recipe, request: EvalRequest) -> Recipe:
    """Return the recipe with the timesteps and the number of clips that are asked for."""
    update: dict[str, Any] = {}
    if count := request.timesteps:  # ten are those of Open-Sora 1.2's evaluation: 91, 182, ..., 909
        update["timesteps"] = recipe.objective.timesteps(range(1, count + 1), parts=count + 1)
    if request.max_clips is not None or request.data_path is not None:
        update["max_clips"] = request.max_clips or sys.maxsize
    return recipe.model_copy(update={"validation": recipe.validation.model_copy(update=update)})


@dataclass(frozen=True)
class Evaluation:
    """Held-out loss of some weights, with all that it depends on.

    Attributes:
        clips: Number of clips that were asked for.
        clips_digest: Digest of them and of how they are read, by which two results of the same clips are recognized.
        validation: The losses.
        left_out: Clips that are not measured where all are asked for, by reason.
    """

    source: EvaluatedModel = field(metadata=results.INLINED)
    timesteps: list[float]
    clips: int
    clips_digest: str
    validation: Validation = field(metadata=results.INLINED)
    left_out: dict[str, int] = field(default_factory=dict)
    JSON_KEYS: ClassVar = ("source", "timesteps", "clips_digest", "failed", "left_out", "validation")

    @property
    def failed(self) -> int:
        """Number of clips that could not be decoded."""
        return self.clips - self.validation.clips

    @property
    def measured_on(self) -> str:
        """Digest of all that the loss depends on besides the checkpoint."""
        return digests.digest_json([self.source.weights, self.validation.measured_on])[:16]

    @property
    def values(self) -> dict[str, float]:
        """The loss by its name."""
        return {"loss": self.validation.loss}

    def headline(self) -> str:
        """Return what was measured, in one line."""
        source, losses = self.source, self.validation
        names = {"ema": "averaged weights", "model": "trained weights", "initial": "weights that training begins with"}
        weights = names[source.weights]
        of = weights if source.run is None else f"{weights} of step {source.step}"
        clips = units.plural(losses.clips, "held-out clip" if source.held_out else "clip")
        named = first_few([clip.path for clip in losses.unread])
        lost = f"; {self.failed} could not be decoded ({named})" if self.failed else ""
        lost += "".join(f"; {count} {reason}" for reason, count in self.left_out.items())
        # Not to be compared with the validation losses of such a run, which are of what is trained.
        without = " without lora.training_adapter" if source.recipe.has_training_adapter else ""
        return f"loss {losses.loss:.4f} of the {of}{without}, on {clips}{lost}"

    def file(self) -> Path | None:
        """Return the file in the run folder; the same settings have the same file. None without a run."""
        source = self.source
        if source.run is None:
            return None
        settings = digests.digest_json([self.timesteps, self.clips_digest, source.seed])[:8]
        return RunFolder(source.run).evaluations_folder / f"step-{source.step:09d}-{source.weights}-{settings}.json"


def evaluate(
    request: EvalRequest,
    on_scan: Callable[[ScanProgress], None] | None = None,
    on_clip: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Measure the loss of weights on held-out clips; the same call returns the same numbers on the same machine.

    Raises:
        UserError: There is no such checkpoint, no clip is held out, or none could be decoded.
    """
    source = EvaluatedModel.locate(request)
    with mesh.join() as world:
        data = source.data(on_scan)
        recipe, clips = data.recipe, data.held_out()
        if not len(clips):
            raise _nothing_held_out(source)
        with opened(source, data, world, request, on_clip) as (_, measure):
            result = measure()
    if result is None or not result.clips:
        raise UserError(
            f"none of the {len(clips)} clips could be decoded",
            code="no-clip-to-evaluate",
            field="dataset",
            value=recipe.dataset[0].path,
            remedy="check that the files are there, or name the folder where they are now: --set dataset.0.path=FOLDER",
        )
    left_out = {} if source.held_out else _left_out(data)
    return Evaluation(source, recipe.validation_timesteps, len(clips), digest_of(data, clips), result, left_out)


def _left_out(data: RecipeData) -> dict[str, int]:
    """Return how many clips are not measured, by reason, where all are asked for."""
    assignment, row = data.assignment(0)
    measured = np.isin(assignment.reason, (Reason.NONE, Reason.HELD_OUT))
    uses = np.flatnonzero(~np.isin(row, row[measured]))
    _, first = np.unique(row[uses], return_index=True)  # of each clip one use
    reasons, counts = np.unique(assignment.reason[uses[first]], return_counts=True)
    return {Reason(reason).label: int(count) for reason, count in zip(reasons, counts, strict=True)}


@contextmanager
def opened(
    source: EvaluatedModel, data: RecipeData, world: World, request: EvalRequest, on_clip: Callable[[int, int], None]
) -> Iterator[tuple[LoadedModel, Callable[[], Validation | None]]]:
    """Load a model, and yield it with a function that measures the loss of the weights that it holds when it is called."""
    recipe, clips = data.recipe, data.held_out()
    resume.set_threads(recipe)
    with attention.prefer(recipe.model.attention), ExitStack() as stack:
        how = recipe.data.num_workers, recipe.data.decode_timeout
        pool = stack.enter_context(closing(DecodePool(*how, patience_seconds=AWAY_SECONDS)))
        model = source.load(recipe, world)
        attention.use(model.denoiser, recipe.model.attention, world.device)
        stored = encoding.open_store(data) if recipe.encode.store else None
        if stored is not None:
            stack.callback(stored.close)
        steps = StepSource(data, rank=world.rank, world=world.size)
        encoder = stored_batches.choose(model.encoder, world, stored)
        parts = (model.boundary, encoder, world, steps, clips, recipe)
        validator = Validator(*parts, times_at_once=request.batch_size, on_clip=on_clip)
        yield model, lambda: validator.run(pool)


def _nothing_held_out(source: EvaluatedModel) -> UserError:
    if not source.held_out:
        return UserError(
            "no clip of it has a bucket",
            code="no-clip-to-evaluate",
            field="--data-path",
            value=source.recipe.dataset[0].path,
            remedy="`reelworks plan` with the same --data-path says why clips are left out",
        )
    return UserError(
        "no clip is held out, so there is nothing that the model was not trained on",
        code="no-clip-to-evaluate",
        field="validation.split",
        value=source.recipe.validation.split,
        remedy="name other clips with --data-path, or hold some out in the recipe before training",
    )
