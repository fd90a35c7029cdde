"""Which of a run's checkpoints a start goes on from."""

from __future__ import annotations

from reelworks.checkpoint import verify
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.recipe.recipe import Recipe
from reelworks.run import events
from reelworks.run.folder import RunFolder
from reelworks.train import init_from
from reelworks.train.open_run import OpenRun


def pick(run: OpenRun, recipe: Recipe, resume: str) -> int | None:
    """Pick the step to resume from; None for a fresh start. The main rank decides. Collective.

    Args:
        run: Holds the checkpoints.
        recipe: To train on with.
        resume: "auto" (the newest good one), "never", or a step.

    Raises:
        UserError: All checkpoints are bad, a named one is bad or missing, or "never" in a used folder; or the step
            was trained with another optimizer, or as a LoRA of another rank or alpha.
    """
    found = _step_of(run.store, run.folder, resume) if run.world.is_main else None
    step: int | None = run.world.broadcast(found)  # type: ignore[assignment]
    if step is not None:  # before a model is loaded
        init_from.require_same_lora(run.folder, step, recipe)
        elsewhere = f"begin another run with --output DIR --load {run.folder.path} --weights-only"
        init_from.require_optimizer(run.folder, step, recipe, elsewhere)
    return step


def _step_of(store: CheckpointStore, run: RunFolder, resume: str) -> int | None:
    """Step to resume from; None for a fresh start. What dead processes left in the store is removed first."""
    store.sweep()
    if resume == "never":
        if store.steps():
            raise UserError(
                "the run folder already has checkpoints",
                code="run-has-checkpoints",
                field="--resume",
                value=resume,
                remedy="leave --resume out to go on from them, or choose another --output",
            )
        return None
    if resume != "auto":
        return verify.named(store, _step(resume), full=True).step
    # After a kill files may be whole in size and not in content; reading them once tells.
    found = verify.newest_valid(store, full=not _left_in_order(run))
    if found is None:
        return None
    info, skipped = found
    for step, reason in skipped:
        logger.warning("checkpoint of step %d is passed over: %s", step, reason)
    return info.step


def _left_in_order(run: RunFolder) -> bool:
    """Whether the last start ended by itself, with all that it wrote on disk."""
    last = ""
    for event in events.read(run.events_file, "start", "stop"):
        last = event["kind"]
    return last == "stop"


def _step(text: str) -> int:
    if not text.isdecimal():
        raise UserError(
            "not a step",
            code="not-a-step",
            field="--resume",
            value=text,
            remedy="say auto, never, or a number",
        )
    return int(text)
