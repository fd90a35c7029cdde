"""Find the checkpoint that a command names: by its folder, or by its run with a step or as the best."""

from __future__ import annotations

from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.data.checkpoint import listing, verify
from reelworks.data.checkpoint import locate as locate_checkpoint
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import recipe_file


def locate(source: Path, *, step: int | None = None, best: bool = False) -> tuple[RunFolder, int]:
    """Return run and step of the checkpoint that a path names: a checkpoint's folder, or a run's with its newest one.

    With `step` or `best`, it is that checkpoint of the run.
    """
    run, found = locate_checkpoint.locate(source)
    if step is None and not best:
        return run, found
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
    return run, verify.named(store, step, full=False).step
