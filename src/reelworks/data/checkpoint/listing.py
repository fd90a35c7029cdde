"""List checkpoints, and explain why one stayed or was deleted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reelworks.core import log, results
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import names, retention
from reelworks.data.checkpoint.config import Retention
from reelworks.data.checkpoint.folder import CheckpointFolder, CheckpointInfo
from reelworks.data.checkpoint.policy import Reasons, rank_best
from reelworks.data.checkpoint.verify import damage

Event = dict[str, Any]
# Events of the history that end a checkpoint. "deleting" is logged before a deletion, which happened if the
# checkpoint does not exist.
_ENDS: dict[str, Literal["deleted", "set aside"]] = {
    "deleting": "deleted",
    "deleted": "deleted",
    "quarantined": "set aside",
}


@dataclass(frozen=True)
class SavedFacts:
    """Facts of a checkpoint whose manifest is readable.

    Attributes:
        epoch: Epoch in its cursor, from 0; None if it has no readable cursor.
        stage: Name of the recipe's stage; empty without stages.
        bytes: Size of its files.
        created: Seconds since 1970.
        metrics: Those that are finite.
    """

    epoch: int | None
    stage: str
    bytes: int
    created: float
    metrics: dict[str, float]
    pinned: bool


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint, and the policy's decision about it among those that are there.

    Attributes:
        saved: None if the manifest is not readable.
        keep: None for a damaged one, about which the policy does not decide.
        reasons: Reasons of the decision, or what is damaged.
    """

    step: int
    path: Path
    saved: SavedFacts | None = field(metadata=results.INLINED)
    state: Literal["kept", "goes", "damaged"]
    keep: bool | None
    reasons: Reasons


@dataclass(frozen=True)
class StoredFile:
    """A file of a checkpoint: its path below the checkpoint's folder, its size in bytes and its digest."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class ManifestFacts:
    """Facts of a manifest.

    Attributes:
        save_id: Differs between two saves of one step.
        run_id: The run's id in run.json; empty outside runs.
        world_size: Processes that wrote it.
        versions: Of Reelworks and its libraries, by name.
    """

    save_id: str
    run_id: str
    world_size: int
    versions: dict[str, str]
    files: list[StoredFile]


@dataclass(frozen=True)
class CheckpointDetails:
    """A checkpoint with its manifest, None if that is not readable."""

    manifest: ManifestFacts | None = field(metadata=results.INLINED)
    listed: ListedCheckpoint = field(metadata=results.INLINED)


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """Whether a checkpoint is as its manifest says; `reason` is empty if it is."""

    step: int
    path: Path
    good: bool
    reason: str


@dataclass(frozen=True)
class EndedCheckpoint:
    """A checkpoint that does not exist any more: when it ended, None if it is not known, and why."""

    state: Literal["deleted", "set aside", "gone"]
    ended: float | None
    reasons: Reasons


@dataclass(frozen=True)
class CheckpointHistory:
    """The end or the present state of a step's checkpoint, and what happened to it before.

    Attributes:
        saved: Time of the save in seconds since 1970; None if neither its history nor its manifest tells.
        bytes, metrics: Those of the manifest, or of the history.
        now: The checkpoint as it is listed, or its end.
        history: All events about it, oldest first.
    """

    step: int
    saved: float | None
    bytes: int | None
    metrics: dict[str, float]
    now: ListedCheckpoint | EndedCheckpoint = field(metadata=results.INLINED)
    history: list[Event]


@dataclass(frozen=True)
class PrunedCheckpoint:
    """A checkpoint that was kept or deleted, with its size and all reasons."""

    step: int
    bytes: int
    reasons: Reasons


@dataclass(frozen=True)
class Pruned:
    """Checkpoints that the policy keeps and deletes; with `dry_run`, would delete."""

    dry_run: bool
    kept: list[PrunedCheckpoint]
    deleted: list[PrunedCheckpoint]


def rows(store: CheckpointFolder, policy: Retention) -> list[ListedCheckpoint]:
    """Return every checkpoint, damaged ones too, and the policy's decision among those that are there, oldest first."""
    good, broken = store.scan()
    decisions = {decision.step: decision for decision in retention.plan(store, policy)}
    listed = [_damaged(step, store.path(step), None, reason) for step, reason in broken.items()]
    for c in good:
        saved = SavedFacts(epoch(c), c.stage, c.num_bytes, c.created, finite(c.metrics), c.pinned)
        if (decision := decisions.get(c.step)) is not None:
            state: Literal["kept", "goes"] = "kept" if decision.keep else "goes"
            listed.append(ListedCheckpoint(c.step, c.path, saved, state, decision.keep, decision.reasons))
        elif c.path.exists():  # a training may have deleted it since the scan
            listed.append(_damaged(c.step, c.path, saved, damage(c.path) or "damaged a moment ago"))
    return sorted(listed, key=lambda row: row.step)


def _damaged(step: int, path: Path, saved: SavedFacts | None, reason: str) -> ListedCheckpoint:
    return ListedCheckpoint(step, path, saved, "damaged", None, (reason,))


def epoch(info: CheckpointInfo) -> int | None:
    """Return the epoch in a checkpoint's cursor, from 0; None if it has no readable cursor."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        value = json.loads((info.path / names.CURSOR).read_text(encoding="utf-8"))["epoch"]
        return value if isinstance(value, int) else None
    return None


def finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics whose values are finite."""
    return {name: v for name, v in metrics.items() if v is not None and math.isfinite(v)}


def total_bytes(rows: Iterable[ListedCheckpoint]) -> int:
    """Return the sum of all sizes that are known."""
    return sum(row.saved.bytes for row in rows if row.saved is not None)


def row(store: CheckpointFolder, policy: Retention, step: int) -> ListedCheckpoint:
    """Return the row of one step; raises `UserError` if it has no checkpoint."""
    match = next((row for row in rows(store, policy) if row.step == step), None)
    if match is None:
        raise store.unknown(step)
    return match


def details(store: CheckpointFolder, policy: Retention, step: int) -> CheckpointDetails:
    """Return a step's row with its manifest; raises as `row` does."""
    listed = row(store, policy, step)
    if listed.saved is None:
        return CheckpointDetails(None, listed)
    m = store.info(step).manifest
    files = [StoredFile(file.path, file.size, file.digest) for file in m.files]
    return CheckpointDetails(ManifestFacts(m.save_id, m.run_id, m.world_size, m.versions, files), listed)


def best(store: CheckpointFolder, policy: Retention) -> ListedCheckpoint:
    """Return the row of the best checkpoint by the recipe's `keep_best`, which some checkpoint must have."""
    ranked = rank_best(retention.whole(store), policy.keep_best)
    if not ranked:
        metric = policy.keep_best and policy.keep_best.metric
        raise UserError(
            f"no checkpoint has a finite {metric}" if metric else "the recipe names no metric for the best checkpoint",
            code="no-metric",
            field="checkpoints.keep_best",
            value=metric or "none",
            remedy="validate more often with validation.every_steps, or name another metric"
            if metric
            else 'set it in the recipe, e.g. keep_best = { metric = "validation/loss", mode = "min" }',
        )
    return row(store, policy, ranked[0])


def verified(store: CheckpointFolder, steps: list[int], full: bool) -> list[VerifiedCheckpoint]:
    """Check checkpoints against their manifests, by size or also by digest, and change nothing."""
    listed = []
    for step in steps:
        with log.stage(f"comparing step {step} with its manifest"):
            reason = damage(store.path(step), full)
        if reason and not store.path(step).exists():
            continue  # deleted meanwhile by a training
        listed.append(VerifiedCheckpoint(step, store.path(step), not reason, reason))
    return listed


def prune(store: CheckpointFolder, policy: Retention, *, dry_run: bool = False) -> Pruned:
    """Delete what the policy does not keep, or with `dry_run` only tell what that would be."""
    sizes = {info.step: info.num_bytes for info in store.list()}
    split: dict[bool, list[PrunedCheckpoint]] = {True: [], False: []}
    for one in (retention.plan if dry_run else retention.prune)(store, policy):
        if one.step in sizes:  # others were saved meanwhile: a dry run also works while the run trains
            split[one.keep].append(PrunedCheckpoint(one.step, sizes[one.step], one.reasons))
    return Pruned(dry_run, split[True], split[False])


def explain(store: CheckpointFolder, policy: Retention, step: int) -> CheckpointHistory:
    """Return the state of a step's checkpoint, the reasons and its history, even if it was deleted."""
    history = store.history()
    events = [event for event in history if event.get("step") == step]
    exists = step in store.steps()
    if not exists and not events:
        known = sorted({*store.steps(), *(event["step"] for event in history if "step" in event)})
        raise UserError(
            "the history has no checkpoint of this step",
            code="unknown-checkpoint",
            field="STEP",
            value=step,
            remedy=f"known steps: {', '.join(map(str, known)) or 'none'}",
        )
    saved: Event = next((event for event in reversed(events) if event["event"] == "saved"), {})
    metrics = dict(saved.get("metrics", {}))
    for event in events:
        if event["event"] == "metrics" and event.get("save_id") == saved.get("save_id"):
            metrics |= event.get("metrics", {})
    now = row(store, policy, step) if exists else _end(events)
    if isinstance(now, ListedCheckpoint) and (facts := now.saved) is not None:
        return CheckpointHistory(step, saved.get("time") or facts.created, facts.bytes, facts.metrics, now, events)
    return CheckpointHistory(step, saved.get("time"), saved.get("bytes"), finite(metrics), now, events)


def _end(events: list[Event]) -> EndedCheckpoint:
    ends = [event for event in events if event["event"] in (*_ENDS, "saved")]
    last: Event = ends[-1] if ends else {"event": "saved"}
    if last["event"] == "saved":
        return EndedCheckpoint(
            "gone", None, ("the history has no deletion: it was removed by hand, or stayed in the mirror",)
        )
    reasons = last.get("reasons") or [last.get("reason", "the history does not say why")]
    return EndedCheckpoint(_ENDS[last["event"]], last["time"], tuple(reasons))
