"""Which of a run's checkpoints a start goes on from."""

from __future__ import annotations

from reelworks.checkpoint import verify
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core.errors import UserError
from reelworks.run import events
from reelworks.run.folder import RunFolder


def step_of(store: CheckpointStore, run: RunFolder, resume: str) -> int | None:
    """Step to resume from; None for a fresh start. What dead processes left in the store is removed first.

    Args:
        store: The run's checkpoints.
        run: Its folder.
        resume: "auto" (the newest good one), "never", or a step.

    Raises:
        UserError: All checkpoints are bad, a named one is bad or missing, or "never" in a used folder.
    """
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
        print(f"checkpoint of step {step} is passed over: {reason}", flush=True)
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
