"""Start a run from the weights of another run or of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from reelworks.core import toml_none, units
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.checkpoint import load, locate, read_lock, verify
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.distributed.mesh import World
from reelworks.data.run.folder import RunFolder
from reelworks.models import hub, identify
from reelworks.models.adapters import files
from reelworks.models.base_model import Base, require_same
from reelworks.models.components import family_config
from reelworks.models.export import lora
from reelworks.models.storage.weights import ShapeMismatch, read, require_fit, shapes_of
from reelworks.training.assembly.build import TrainedModel
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe


class _Loaded(NamedTuple):
    """A file of weights, or a checkpoint with its step, and the decay of its run's average, None if the optimizer had it."""

    path: Path
    step: int = 0
    ema_decay: float | None = 0.0


def load_run(source: Path, model: TrainedModel, world: World, recipe: Recipe, *, weights_only: bool) -> int:
    """Load the state of another run in place, and log its path; the position in the data is not loaded. Collective.

    `source` is the run's folder, one of its checkpoints, or a .safetensors file of weights. With `weights_only`, the
    average is copied from the weights, which are the average of a run whose optimizer had it, and the optimizer is reset.

    Returns:
        Number of steps that the average is of, from which its decay goes on; 0 if it begins anew.
    """
    base, loaded = model.base, _Loaded(source)
    tensors = model.state.state_dict()
    if hub.is_file_of(source, hub.SAFETENSORS):
        if not weights_only:
            raise UserError(
                "the file holds weights and no optimizer state",
                code="file-without-optimizer",
                field="--load",
                value=str(source),
                remedy="add --weights-only, or name a run or one of its checkpoints",
            )
        _read_file(source, tensors["model"], recipe)
        if base is not None:
            files.warn_of_base(str(source), base)
    else:
        if world.is_main:
            run, step = locate.locate(source)
            trained = require_same_settings(run, step, recipe, None if weights_only else "add --weights-only")
            path = CheckpointFolder(run.checkpoints_folder).path(step)
            loaded = _Loaded(path, step, trained.train.ema_decay)
            if (key := trained.objective.other_output(recipe.objective)) is not None:
                had, new = getattr(trained.objective, key), getattr(recipe.objective, key)
                logger.warning(f'{path} was trained with objective.{key} = "{had}", and the recipe has "{new}"')
        loaded = world.broadcast(loaded)  # type: ignore[assignment]
        if weights_only:
            tensors = {part: tensors[part] for part in ("model", "ema") if part == "model" or loaded.ema_decay is None}
        with read_lock.reading(loaded.path), verify.bad_told(loaded.path):
            load.load(loaded.path, tensors, fixed=True)
            require_base(loaded.path, base)
            average_step = load.average_step(loaded.path)
    if not weights_only:
        model.state.optimizer.load_state_dict(tensors["optimizer"])
        return _continue_average(model, recipe, loaded, loaded.step - average_step)
    what = "weights"
    if loaded.ema_decay is None:
        model.state.take_average()
        what = "the average"
    model.state.begin_again()
    logger.info("loaded %s from %s; optimizer and average begin anew", what, loaded.path)
    return 0


def _continue_average(model: TrainedModel, recipe: Recipe, loaded: _Loaded, steps: int) -> int:
    """Log what is loaded, and return the steps of the average; it begins anew if one of both runs keeps none."""
    this_keeps = recipe.train.ema_decay != 0.0
    if this_keeps and loaded.ema_decay != 0.0:
        logger.info("loaded weights, average (of %s) and optimizer from %s", units.plural(steps, "step"), loaded.path)
        return steps
    model.state.begin_average()
    whose = "that run kept" if this_keeps else "this one keeps"
    logger.info("loaded weights and optimizer from %s; %s no average (train.ema_decay = 0.0)", loaded.path, whose)
    return 0


def require_base(checkpoint: Path, base: Base | None) -> Base | None:
    """Check that a checkpoint's LoRA was trained on this base; None for a model without a LoRA.

    Returns:
        The base that it was trained on, which has the digest of its training adapter.
    """
    trained_on = lora.lora_base_of(checkpoint)
    if trained_on is not None and base is not None:
        require_same(trained_on, base, str(checkpoint))
    return trained_on


@torch.no_grad()
def _read_file(source: Path, model: dict[str, Any], recipe: Recipe) -> None:
    """Copy a file's tensors into the model's, sharded or not; every rank reads the file."""
    file, field = str(source), "--load"
    if recipe.lora is not None:
        weights = files.read(file, field, model, recipe.lora, family_config(recipe.model))
    else:
        weights = read(file, field)
        try:
            require_fit(shapes_of(model), shapes_of(weights), file, field)
        except ShapeMismatch as mismatch:
            raise identify.explain(mismatch, recipe.model.name) from mismatch
    for name, tensor in model.items():
        value = weights[name].to(tensor.dtype)
        if isinstance(tensor, DTensor):
            value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)
        tensor.copy_(value)


def require_same_settings(run: RunFolder, step: int, recipe: Recipe, without: str | None) -> Recipe:
    """Check that a checkpoint has the recipe's optimizer and the settings of its LoRA, which decide what its tensors are.

    Returns the recipe that it was trained with. `without` is a remedy that loads only the weights; None if that is done,
    whatever the optimizer.
    """
    trained = recipe_file.of_run(run, step)
    if (trained.lora is None) != (recipe.lora is None):
        has = "all weights" if trained.lora is None else "a LoRA"
        raise UserError(
            f"the checkpoint of step {step} is of a training of {has}",
            code="lora-settings-differ",
            field="lora",
            value=None if recipe.lora is None else recipe.lora.type,
            remedy=f"{'remove [lora]' if trained.lora is None else 'write the [lora] of that training'}, or train in a run of its own",
        )
    if trained.lora is not None and recipe.lora is not None:
        # The rank comes before alpha, which defaults to it.
        for name in (*trained.lora.adapter._fields, "dora", "text_encoders"):
            saved, asked = (getattr(lora.adapter, name, getattr(lora, name)) for lora in (trained.lora, recipe.lora))
            if saved != asked:
                saved = toml_none.WORD if saved is None else saved
                saved = f"{saved:g}" if isinstance(saved, float) else json.dumps(saved)
                raise UserError(
                    f"the checkpoint's LoRA has {name} {saved}",
                    code="lora-settings-differ",
                    field=f"lora.{name}",
                    value=asked,
                    remedy=f"set it to {saved}, or train another LoRA in a run of its own",
                )
    had, new = trained.train.optimizer, recipe.train.optimizer
    if without is not None and had != new:
        raise UserError(
            f"the checkpoint of step {step} holds the state of {had}, which {new} cannot use",
            code="optimizer-state-differs",
            field="train.optimizer",
            value=new,
            remedy=f'set it to "{had}", or {without}: loads only the weights, and starts {new} from its first step',
        )
    return trained
