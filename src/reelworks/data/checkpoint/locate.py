"""Find the checkpoint that a path names; torch-free."""

from __future__ import annotations

from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.data.checkpoint import verify
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.folder import RunFolder


def locate(source: Path) -> tuple[RunFolder, int]:
    """Return run and step of the checkpoint that a path names: a checkpoint's folder, or a run's with its newest one."""
    if source.is_file():
        raise UserError(
            "this is a file, not a run",
            code="not-a-run",
            field="RUN",
            value=str(source),
            remedy="name the folder of a run or checkpoint; a file of weights goes to model.weights or lora.weights",
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
    found = verify.newest_valid(store, full=False)
    if found is None:
        raise UserError(
            "the run has no checkpoint yet",
            code="run-without-checkpoint",
            field="RUN",
            value=str(source),
            remedy="train it first, or wait for its first save",
        )
    return run, found[0].step
