"""Find the checkpoint that a path names; torch-free."""

from __future__ import annotations

from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.data.checkpoint import verify
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.manifest import BadCheckpoint
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
