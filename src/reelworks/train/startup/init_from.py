"""Start a run from the weights of another run or of a file, and find the checkpoint that a path names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from reelworks.checkpoint import listing, load, read_lock, verify
from reelworks.checkpoint.folder import CheckpointFolder
from reelworks.checkpoint.manifest import BadCheckpoint
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.distributed.mesh import World
from reelworks.export import lora
from reelworks.models import identify
from reelworks.models.components import family_config
from reelworks.models.lora import files
from reelworks.models.lora.base_model import Base, require_same, require_same_adapter
from reelworks.models.weights import ShapeMismatch, read, require_fit, shapes_of
from reelworks.recipe import recipe_file
from reelworks.recipe.recipe import Recipe
from reelworks.run import history
from reelworks.run.folder import RunFolder
from reelworks.train.startup.build import TrainedModel


def load_run(source: Path, model: TrainedModel, world: World, recipe: Recipe, *, weights_only: bool) -> None:
    """Load the state of another run in place, and log its path; the position in the data is not loaded. Collective.

    `source` is the run's folder, one of its checkpoints, or a .safetensors file of weights. With `weights_only`, the
    average is copied from the weights, and the optimizer is reset.
    """
    warning, path, base = None, source, model.base
    tensors = model.state.state_dict()
    if source.suffix == ".safetensors":
        if not weights_only:
            raise UserError(
                "the file holds weights and no optimizer state",
                code="file-without-optimizer",
                field="--load",
                value=str(source),
                remedy="add --weights-only, or name a run or one of its checkpoints",
            )
        _read_file(source, tensors["model"], recipe)
        warning = None if base is None else files.base_warning(str(source), base)
    else:
        path = world.broadcast(_checkpoint(source, recipe, weights_only) if world.is_main else source)  # type: ignore[assignment]
        if weights_only:
            tensors = {"model": tensors["model"]}
        with read_lock.reading(path), verify.bad_told(path):
            load.load(path, tensors, fixed=True)
            require_base(path, base)
    if not weights_only:
        model.state.optimizer.load_state_dict(tensors["optimizer"])
        logger.info("loaded weights, average and optimizer from %s", path)
        return
    model.state.begin_again()
    logger.info("loaded weights from %s", path)
    if warning is not None:
        logger.warning(warning)


def require_base(checkpoint: Path, base: Base | None) -> None:
    """Check that a checkpoint's LoRA was trained on this base; None for a model without a LoRA."""
    trained_on = lora.lora_base_of(checkpoint)
    if trained_on is not None and base is not None:
        require_same(trained_on, base, "checkpoint", str(checkpoint))


def require_adapter(checkpoint: Path, base: Base | None, source: str | None) -> None:
    """Check that a checkpoint's LoRA was trained with this training adapter, whose digest the base has."""
    trained_on = lora.lora_base_of(checkpoint)
    if trained_on is not None and base is not None:
        require_same_adapter(trained_on, base, source)


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


def _checkpoint(source: Path, recipe: Recipe, weights_only: bool) -> Path:
    run, step = locate(source)
    require_same_settings(run, step, recipe, None if weights_only else "add --weights-only")
    return CheckpointFolder(run.checkpoints_folder).path(step)


def require_same_settings(run: RunFolder, step: int, recipe: Recipe, without: str | None) -> None:
    """Check that a checkpoint has the recipe's optimizer, and its LoRA's type, rank and alpha, which tensors do not hold.

    `without` is a remedy that loads only the weights; None if that is done, whatever the optimizer.
    """
    trained = recipe_file.load(history.recipe_of(run, step))
    if trained.lora is not None and recipe.lora is not None:
        # The rank comes before alpha, which defaults to it.
        for name, saved in trained.lora.adapter._asdict().items():
            asked = getattr(recipe.lora.adapter, name)
            if saved != asked:
                saved = f"{saved:g}" if isinstance(saved, float) else saved
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


def locate(source: Path, *, step: int | None = None, best: bool = False) -> tuple[RunFolder, int]:
    """Return run and step of the checkpoint that a path names: a checkpoint's folder, or a run's with its newest one.

    With `step` or `best`, it is that checkpoint of the run.
    """
    run, found = _named(source)
    return run, found if step is None and not best else _chosen(run, step, source)


def _chosen(run: RunFolder, step: int | None, source: Path) -> int:
    store = CheckpointFolder(run.checkpoints_folder)
    if source.resolve() != run.path.resolve():
        raise UserError(
            "a checkpoint is named already",
            code="two-checkpoints",
            field="RUN",
            value=str(source),
            remedy=f"name the run, {run.path}, or leave --step and --best out",
        )
    if step is None:
        step = listing.best(store, recipe_file.load(run.recipe_file).checkpoints).step
    return verify.named(store, step, full=False).step


def _named(source: Path) -> tuple[RunFolder, int]:
    if source.is_file():
        raise UserError(
            "this is a file, not a run",
            code="not-a-run",
            field="RUN",
            value=str(source),
            remedy="name the folder of a run or of a checkpoint; to start a new run from a file of weights, set "
            "model.weights or lora.weights",
        )
    checkpoint = None
    if not RunFolder(source).exists:
        # Resolve links only if needed: `checkpoints` itself may be a link to a larger disk.
        paths = (source.absolute(), source.resolve())
        checkpoint = next((path for path in paths if path.parent.name == "checkpoints"), None)
    run = RunFolder(source if checkpoint is None else checkpoint.parent.parent)
    run.info()
    store = CheckpointFolder(run.checkpoints_folder)
    if checkpoint is not None:
        step = checkpoint.name.removeprefix("step-")
        return run, verify.named(store, int(step) if step.isdecimal() else -1, full=False).step
    return run, _newest(store, source)


def _newest(store: CheckpointFolder, source: Path) -> int:
    """Return the newest checkpoint with all its files, without changing the store, which may be in use."""
    damage = []
    for step in reversed(store.steps()):
        try:
            verify.verify(store.path(step), full=False)
        except BadCheckpoint as error:
            if not store.path(step).exists():  # the running training has saved a newer one, and deleted this one
                return _newest(store, source)
            damage.append(f"\n    step {step}: {error.reason}")
        except OSError as error:  # unknown whether it is good; do not return an older one as the newest
            raise UserError(
                f"the checkpoint cannot be read now ({error.strerror or error})",
                code="checkpoint-unreadable",
                field="checkpoint",
                value=str(store.path(step)),
                remedy="try again when the storage answers, or name another checkpoint",
            ) from error
        else:
            return step
    if damage:
        raise UserError(
            f"no checkpoint of the run is complete:{''.join(damage)}",
            code="no-good-checkpoint",
            field="RUN",
            value=str(source),
            remedy="restore the missing files, or name another run",
        )
    raise UserError(
        "the run has no checkpoint yet",
        code="run-without-checkpoint",
        field="RUN",
        value=str(source),
        remedy="train it first, or wait for its first save",
    )
