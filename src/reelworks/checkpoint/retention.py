"""The policy applied to a store."""

from __future__ import annotations

from reelworks.checkpoint import policy as policies
from reelworks.checkpoint.config import CheckpointsConfig
from reelworks.checkpoint.manifest import BadCheckpoint
from reelworks.checkpoint.policy import Decision
from reelworks.checkpoint.store import CheckpointInfo, CheckpointStore
from reelworks.checkpoint.verify import verify


def plan(store: CheckpointStore, policy: CheckpointsConfig, in_use: int | None = None) -> list[Decision]:
    """Say what `apply_retention` would do, and do nothing.

    Only checkpoints whose files are all there, by size, take part: a damaged one neither takes the place
    of a good one nor is deleted.
    """
    return policies.plan_retention([c for c in store.list() if _whole(c)], policy, in_use)


def apply_retention(
    store: CheckpointStore, policy: CheckpointsConfig, in_use: int | None = None
) -> list[Decision]:
    """Delete what the policy does not keep, oldest first; on rank 0, after a commit.

    Returns:
        All decisions, oldest first, for the events of the run.
    """
    decisions = plan(store, policy, in_use)
    for decision in decisions:
        if not decision.keep:
            store.remove(decision.step, decision.reasons)
    return decisions


def _whole(checkpoint: CheckpointInfo) -> bool:
    try:
        verify(checkpoint.path, full=False)
    except (BadCheckpoint, OSError):
        return False
    return True
