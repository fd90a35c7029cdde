"""Weights from another run: which checkpoint is meant, and what of it is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from reelworks.checkpoint import load, read_lock, verify
from reelworks.checkpoint.manifest import BadCheckpoint
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.distributed.mesh import World
from reelworks.export import lora
from reelworks.models import identify
from reelworks.models.components import family_config
from reelworks.models.lora import files
from reelworks.models.lora.base_model import Base, require_same
from reelworks.models.weights import ShapeMismatch, read, require_fit, shapes_of
from reelworks.recipe import recipe_file
from reelworks.recipe.recipe import Recipe
from reelworks.run import history
from reelworks.run.folder import RunFolder
from reelworks.train.state import TrainState


def take_over(
    source: Path, state: TrainState, world: World, recipe: Recipe, base: Base | None, *, weights_only: bool
) -> None:
    """Begin a run with what another one has learned, in place, and tell it; its position in the data stays behind.

    Args:
        source: The other run's folder, one of its checkpoints, or a .safetensors file of weights.
        state: Weights, average and optimizer of this run.
        world: This process among the others.
        recipe: Of this run.
        base: What its LoRA lies on, if it trains one.
        weights_only: Take the weights alone; the average begins as their copy, the optimizer anew.

    Raises:
        UserError: There is no such checkpoint, or it is of another model.
    """
    warning = None
    tensors: dict[str, Any] = state.state_dict()
    path = source
    if source.suffix == ".safetensors":
        if not weights_only:
            raise UserError(
                "a file holds weights alone, no optimizer",
                code="file-without-optimizer",
                field="--load",
                value=str(source),
                remedy="add --weights-only, or name a run or one of its checkpoints",
            )
        _read_file(source, tensors["model"], recipe)
        warning = None if base is None else files.of_another_base(str(source), base)
    else:
        found = world.broadcast(_path(source, recipe, weights_only) if world.is_main else None)
        assert isinstance(found, Path)
        path = found
        if weights_only:
            tensors = {"model": tensors["model"]}
        with read_lock.reading(path):
            load.load(path, tensors)
            require_base(path, base)
    if not weights_only:
        state.load_optimizer(tensors["optimizer"])
        logger.info("weights, average and optimizer from %s", path)
        return
    state.begin_again()
    logger.info("weights from %s", path)
    if warning is not None:
        logger.warning(warning)


def require_base(checkpoint: Path, here: Base | None) -> None:
    """Refuse a checkpoint of a LoRA that was trained on another base than the one here.

    Raises:
        UserError: Names both.
    """
    trained_on = lora.lora_base_of(checkpoint)
    if trained_on is not None and here is not None:
        require_same(trained_on, here, "checkpoint", str(checkpoint))


@torch.no_grad()
def _read_file(source: Path, model: dict[str, Any], recipe: Recipe) -> None:
    """Copy a file's tensors into a model's, sharded or not; each rank reads what it needs."""
    file, field = str(source), "--load"
    if recipe.lora is not None:
        weights = files.read(file, field, model, recipe.lora, family_config(recipe.model))
    else:
        weights = read(file, field)
        try:
            own, given = shapes_of(model), shapes_of(weights)
            require_fit(own, given, file, field)
        except ShapeMismatch as misfit:
            raise identify.explained(misfit, recipe.model.name) from misfit
    for name, tensor in model.items():
        value = weights[name].to(tensor.dtype)
        if isinstance(tensor, DTensor):
            value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)
        tensor.copy_(value)


def _path(source: Path, recipe: Recipe, weights_only: bool) -> Path:
    run, step = locate(source)
    require_same_lora(run, step, recipe)
    if not weights_only:
        require_optimizer(run, step, recipe, "add --weights-only")
    return CheckpointStore(run.checkpoints_folder).path(step)


def require_same_lora(run: RunFolder, step: int, recipe: Recipe) -> None:
    """Refuse a checkpoint of a LoRA of another rank, or of another alpha, which its tensors do not tell.

    Raises:
        UserError: Names both.
    """
    trained, here = recipe_file.load(history.recipe_of(run, step)).lora, recipe.lora
    if trained is None or here is None:
        return
    # The rank first: alpha is the rank where a recipe does not say it.
    values = {"rank": (trained.rank, here.rank), "alpha": (trained.exact_alpha, here.exact_alpha)}
    for name, (there, asked) in values.items():
        if there != asked:
            raise UserError(
                f"the LoRA to begin with has {name} {there:g}",
                code="lora-settings-differ",
                field=f"lora.{name}",
                value=asked,
                remedy=f"set it to {there:g}, or train another LoRA in a run of its own",
            )


def require_optimizer(run: RunFolder, step: int, recipe: Recipe, without: str) -> None:
    """Refuse a checkpoint whose optimizer kept other things than this recipe's.

    Args:
        run: That it is of.
        step: Its step.
        recipe: To train on with.
        without: How to begin without what was kept.

    Raises:
        UserError: Names both.
    """
    then, now = recipe_file.load(history.recipe_of(run, step)).train.optimizer, recipe.train.optimizer
    if then == now:
        return
    raise UserError(
        f"the checkpoint of step {step} holds the state of {then}, which is of no use to {now}",
        code="optimizer-state-differs",
        field="train.optimizer",
        value=now,
        remedy=f'set it to "{then}", or {without}: weights alone, with {now} from its first step',
    )


def locate(source: Path) -> tuple[RunFolder, int]:
    """Find the checkpoint that a run folder (its newest good one) or a checkpoint's folder means.

    Raises:
        UserError: There is no run, or no checkpoint that can be read.
    """
    if source.is_file():
        raise UserError(
            "this is a file, not a run",
            code="not-a-run",
            field="RUN",
            value=str(source),
            remedy="name a run's folder or a checkpoint's; a new run begins with a file of weights by model.weights, "
            "or lora.weights",
        )
    checkpoint = _as_checkpoint(source)
    run = RunFolder(source if checkpoint is None else checkpoint.parent.parent)
    run.info()
    store = CheckpointStore(run.checkpoints_folder)
    if checkpoint is not None:
        step = checkpoint.name.removeprefix("step-")
        return run, verify.named(store, int(step) if step.isdecimal() else -1, full=False).step
    return run, _newest(store, source)


def _as_checkpoint(source: Path) -> Path | None:
    """The path below `checkpoints/` that is meant, whole even if it was typed in there; None for a run."""
    if RunFolder(source).exists:
        return None
    # Links are followed only where needed: `checkpoints` itself may be one, to a larger disk.
    whole = (source.absolute(), source.resolve())
    return next((path for path in whole if path.parent.name == "checkpoints"), None)


def _newest(store: CheckpointStore, source: Path) -> int:
    """Newest checkpoint with all its files; looking never changes the store, which may be in use."""
    damage = []
    for step in reversed(store.steps()):
        try:
            verify.verify(store.path(step), full=False)
        except BadCheckpoint as error:
            if not store.path(step).exists():  # a training has saved a newer one, and deleted this
                return _newest(store, source)
            damage.append(f"\n    step {step}: {error.reason}")
        except OSError as error:  # no verdict: an older one would pass for the newest
            raise UserError(
                f"the checkpoint cannot be read now ({error.strerror or error})",
                code="checkpoint-unreadable",
                field="checkpoint",
                value=str(store.path(step)),
                remedy="try again when storage answers, or name another checkpoint",
            ) from error
        else:
            return step
    if damage:
        raise UserError(
            f"no checkpoint of the run can be read:{''.join(damage)}",
            code="no-good-checkpoint",
            field="RUN",
            value=str(source),
            remedy="put back the files that are missing, or name another run",
        )
    raise UserError(
        "the run has no checkpoint yet",
        code="run-without-checkpoint",
        field="RUN",
        value=str(source),
        remedy="train it first, or wait for its first save",
    )
