"""Held-out loss of a run's checkpoint, or of the model that a recipe begins with, by bucket and timestep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from reelworks.catalog.scan import ScanProgress
from reelworks.checkpoint import listing, verify
from reelworks.checkpoint.folder import CheckpointFolder
from reelworks.core import digests, files
from reelworks.core.errors import UserError
from reelworks.data.loader import StepSource
from reelworks.distributed import mesh
from reelworks.distributed.mesh import World
from reelworks.generate.load_run import LoadedModel
from reelworks.media.decode_pool import DecodePool
from reelworks.models import attention
from reelworks.recipe import dataset, recipe_file
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.run import history
from reelworks.run.folder import RunFolder
from reelworks.train import encoding, init_from, resume
from reelworks.train.validation import Validation, Validator

# Sections of a recipe that say on which clips, and how, a checkpoint is measured; the others made it what it is.
_FREE_SECTIONS = ("validation", "data", "dataset", "bucket", "buckets", "encode", "catalog", "exclude_file")


@dataclass(frozen=True)
class EvaluatedModel:
    """Weights to measure, and the recipe that names the clips.

    Attributes:
        run: Run of the checkpoint; None for the weights that a recipe begins with.
        step: Step of the checkpoint; 0 without a run.
        weights: Averaged ("ema") or trained ("model") weights of the checkpoint, or those of the recipe ("initial").
        all_clips: Measure on all clips of the datasets, and not only on held-out ones.
    """

    recipe: Recipe
    run: RunFolder | None
    step: int
    weights: Literal["ema", "model", "initial"]
    all_clips: bool = False

    @classmethod
    def locate(
        cls,
        path: Path,
        *,
        step: int | None = None,
        best: bool = False,
        averaged: bool = True,
        overrides: Sequence[str] = (),
        data_path: Path | None = None,
    ) -> EvaluatedModel:
        """Find what a path names: a run (its newest checkpoint, its best one, or that of a step), a checkpoint, a recipe.

        With `data_path`, all clips of that folder or list are measured in place of the recipe's held-out ones.
        """
        if path.suffix == ".toml":
            if step is not None or best or not averaged:
                option = "--step" if step is not None else "--best" if best else "--raw-weights"
                raise UserError(
                    "a recipe has no checkpoints: its model is measured as training would begin with it",
                    code="recipe-without-checkpoints",
                    field=option,
                    remedy="leave it out, or name a run",
                )
            recipe = recipe_file.load(path, overrides)
            return cls(_on(recipe, data_path, None), None, 0, "initial", data_path is not None)
        _require_free(overrides)
        run, found = init_from.locate(path)
        if step is not None or best:
            found = _chosen(run, step, path)
        recipe = recipe_file.load(history.recipe_of(run, found), overrides)
        weights: Literal["ema", "model"] = "ema" if averaged else "model"
        return cls(_on(recipe, data_path, run), run, found, weights, data_path is not None)

    def measuring(self, *, timesteps: list[float] | None, max_clips: int | None) -> EvaluatedModel:
        """Return the same weights, to be measured at other timesteps, or on another number of clips."""
        update: dict[str, Any] = {} if timesteps is None else {"timesteps": timesteps}
        if max_clips is not None:
            update["max_clips"] = max_clips
        settings = self.recipe.validation.model_copy(update=update)
        return replace(self, recipe=self.recipe.model_copy(update={"validation": settings}))

    def data(self, on_scan: Callable[[ScanProgress], None] | None = None) -> RecipeData:
        """Open the clips; a run's catalog is taken as it is, others are brought up to date."""
        if self.run is None or self.all_clips:
            dataset.scan_recipe(self.recipe, on_scan)
        data = RecipeData.open(self.recipe)
        return replace(data, spec=replace(data.spec, split=1.0)) if self.all_clips else data

    def load(self, recipe: Recipe, world: World) -> LoadedModel:
        """Load the network, with encoders that are loaded when they are needed."""
        encoders = encoding.lazy_encoder(recipe, world.device)
        if self.run is None:
            return LoadedModel.begin(recipe, encoders)
        path = CheckpointFolder(self.run.checkpoints_folder).path(self.step)
        return LoadedModel.load(path, averaged=self.weights == "ema", encoders=encoders)


def _require_free(overrides: Sequence[str]) -> None:
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key.partition(".")[0] not in _FREE_SECTIONS:
            raise UserError(
                "the checkpoint was trained with the value of its own recipe",
                code="setting-of-a-checkpoint",
                field="--set",
                value=override,
                remedy=f"leave it out; sections that can be set: {', '.join(_FREE_SECTIONS)}",
            )


def _chosen(run: RunFolder, step: int | None, path: Path) -> int:
    store = CheckpointFolder(run.checkpoints_folder)
    if path.resolve() != run.path.resolve():
        raise UserError(
            "a checkpoint is named already",
            code="two-checkpoints",
            field="RUN",
            value=str(path),
            remedy=f"name the run, {run.path}, or leave --step and --best out",
        )
    if step is None:
        policy = recipe_file.load(run.recipe_file).checkpoints
        step = int(listing.best(store, policy)["step"])
    return verify.named(store, step, full=False).step


def _on(recipe: Recipe, data_path: Path | None, run: RunFolder | None) -> Recipe:
    """Return the recipe with other data, whose catalog is not the run's."""
    if data_path is None:
        return recipe
    own = recipe.dataset[0].model_copy(update={"path": str(data_path), "root": None})
    update: dict[str, Any] = {"dataset": [own]}
    if run is not None:
        update["catalog"] = str(run.evaluations_folder / "catalog")
    return recipe.model_copy(update=update)


def spread(recipe: Recipe, count: int) -> list[float]:
    """Return timesteps in equal distances within the range that a recipe trains, its ends left out.

    Ten of them in [0, 1000] are the timesteps of Open-Sora 1.2's evaluation: 91, 182, ..., 909.
    """
    first, last = recipe.objective.timestep_range
    return [first + (last - first) * i / (count + 1) for i in range(1, count + 1)]


@dataclass(frozen=True)
class Evaluation:
    """Held-out loss of some weights, with all that it depends on.

    Attributes:
        clips: Number of clips that were asked for.
        clips_digest: Digest of their uids, by which two results of the same clips are recognized.
        validation: The losses.
    """

    source: EvaluatedModel
    timesteps: list[float]
    clips: int
    clips_digest: str
    validation: Validation

    @property
    def failed(self) -> int:
        """Number of clips that could not be decoded."""
        return self.clips - self.validation.clips

    def headline(self) -> str:
        """Return what was measured, in one line."""
        source, losses = self.source, self.validation
        weights = {
            "ema": "averaged weights",
            "model": "trained weights",
            "initial": "weights that training begins with",
        }
        of = weights[source.weights] if source.run is None else f"{weights[source.weights]} of step {source.step}"
        clips = "clips" if source.all_clips else "held-out clips"
        lost = f"; {self.failed} could not be decoded" if self.failed else ""
        # Not to be compared with the validation losses of such a run, which are of what is trained.
        without = " without lora.training_adapter" if source.recipe.has_training_adapter else ""
        return f"loss {losses.loss:.4f} of the {of}{without}, on {losses.clips} {clips}{lost}"

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON value."""
        source, losses = self.source, asdict(self.validation)
        return {
            "run": None if source.run is None else str(source.run.path),
            "step": source.step,
            "weights": source.weights,
            "seed": source.recipe.seed,
            "timesteps": self.timesteps,
            "held_out": not source.all_clips,
            "clips_digest": self.clips_digest,
            "failed": self.failed,
            **losses,
        }

    def file(self) -> Path | None:
        """Return the file in the run folder; the same settings have the same file. None without a run."""
        source = self.source
        if source.run is None:
            return None
        settings = digests.digest_json([self.timesteps, self.clips_digest, source.recipe.seed])[:8]
        return source.run.evaluations_folder / f"step-{source.step:09d}-{source.weights}-{settings}.json"


def evaluate(
    source: EvaluatedModel,
    *,
    times_at_once: int | None = None,
    on_scan: Callable[[ScanProgress], None] | None = None,
    on_clip: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Measure the loss of weights on held-out clips; the same call returns the same numbers on the same machine.

    Raises:
        UserError: No clip is held out, or none could be decoded.
    """
    with mesh.join() as world:
        data = source.data(on_scan)
        recipe = data.recipe
        resume.set_threads(recipe)
        clips = data.held_out()
        if not len(clips):
            raise _nothing_held_out(source)
        with attention.prefer(recipe.model.attention), closing(_pool(recipe)) as pool:
            model = source.load(recipe, world)
            attention.use(model.denoiser, recipe.model.attention, world.device)
            stored = encoding.open_store(data) if recipe.encode.store else None
            steps = StepSource(data, rank=world.rank, world=world.size)
            parts = (model.boundary, model.encoder, world, steps, clips, recipe, stored)
            validator = Validator(*parts, times_at_once=times_at_once, on_clip=on_clip)
            result = validator.run(pool)
            if stored is not None:
                stored.close()
    if result is None:
        raise UserError(
            f"none of the {len(clips)} clips could be decoded",
            code="no-clip-to-evaluate",
            field="dataset",
            value=recipe.dataset[0].path,
            remedy="check that the files are there; `reelworks scan` says why they cannot be read",
        )
    digest = digests.digest_json([int(uid) for uid in clips.uid])
    return Evaluation(source, recipe.validation.timesteps, len(clips), digest, result)


def write(result: Evaluation, out: Path | None) -> list[Path]:
    """Write a result into its run folder and to a file, where there are any, and return what was written."""
    targets = [path for path in (result.file(), out) if path is not None]
    for path in targets:
        files.write_for("--out", path, (files.to_json(result.to_json(), indent=2) + "\n").encode())
    return targets


def _pool(recipe: Recipe) -> DecodePool:
    return DecodePool(recipe.data.num_workers, recipe.data.decode_timeout)


def _nothing_held_out(source: EvaluatedModel) -> UserError:
    if source.all_clips:
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
