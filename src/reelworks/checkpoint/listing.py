"""List checkpoints as JSON values, and explain why one stayed or was deleted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from reelworks.checkpoint import names, retention
from reelworks.checkpoint.config import Retention
from reelworks.checkpoint.folder import CheckpointFolder, CheckpointInfo
from reelworks.checkpoint.policy import Decision, rank_best
from reelworks.checkpoint.verify import damage
from reelworks.core import log
from reelworks.core.errors import UserError

Row = dict[str, Any]
# Events of the history that end a checkpoint. "deleting" is logged before a deletion, which happened if the
# checkpoint does not exist.
_ENDS = {"deleting": "deleted", "deleted": "deleted", "quarantined": "set aside"}


def rows(store: CheckpointFolder, policy: Retention) -> list[Row]:
    """Return every checkpoint, damaged ones too, and the policy's decision at the next save, oldest first."""
    good, broken = store.scan()
    decisions = {decision.step: decision for decision in retention.plan(store, policy)}
    # A training may have deleted some since the scan.
    listed = [_row(c, decisions.get(c.step)) for c in good if c.step in decisions or c.path.exists()]
    listed += [{"step": step, "path": store.path(step), **_damaged(reason)} for step, reason in broken.items()]
    return sorted(listed, key=lambda row: int(row["step"]))


def _row(info: CheckpointInfo, decision: Decision | None) -> Row:
    row = {
        "step": info.step,
        "path": info.path,
        "epoch": epoch(info),
        "bytes": info.num_bytes,
        "created": info.created,
        "metrics": finite(info.metrics),
        "pinned": info.pinned,
    }
    if decision is None:
        return row | _damaged(damage(info.path) or "damaged a moment ago")
    state = "kept" if decision.keep else "goes"
    return {**row, "state": state, "keep": decision.keep, "reasons": list(decision.reasons)}


def _damaged(reason: str) -> Row:
    return {"state": "damaged", "keep": None, "reasons": [reason]}


def epoch(info: CheckpointInfo) -> int | None:
    """Return the epoch in a checkpoint's cursor, from 0; None if it has no readable cursor."""
    try:
        value = json.loads((info.path / names.CURSOR).read_text())["epoch"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, int) else None


def finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics whose values are finite."""
    return {name: v for name, v in metrics.items() if v is not None and math.isfinite(v)}


def row(store: CheckpointFolder, policy: Retention, step: int) -> Row:
    """Return the row of one step; raises `UserError` if it has no checkpoint."""
    match = next((r for r in rows(store, policy) if r["step"] == step), None)
    if match is None:
        raise store.unknown(step)
    return match


def details(store: CheckpointFolder, policy: Retention, step: int) -> Row:
    """Return a step's row with the fields of its manifest; raises as `row` does."""
    facts = row(store, policy, step)
    if "bytes" not in facts:  # the manifest is not readable
        return facts
    manifest = store.info(step).manifest.model_dump(mode="json")
    return {**{key: manifest[key] for key in ("save_id", "run_id", "world_size", "versions", "files")}, **facts}


def best(store: CheckpointFolder, policy: Retention) -> Row:
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


def verified(store: CheckpointFolder, steps: list[int], full: bool) -> list[Row]:
    """Check checkpoints against their manifests, by size or also by digest, and change nothing."""
    listed = []
    for step in steps:
        with log.stage(f"comparing step {step} with its manifest"):
            reason = damage(store.path(step), full)
        if reason and not store.path(step).exists():
            continue  # deleted meanwhile by a training
        listed.append({"step": step, "path": store.path(step), "good": not reason, "reason": reason})
    return listed


def explain(store: CheckpointFolder, policy: Retention, step: int) -> Row:
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
    saved: Row = next((event for event in reversed(events) if event["event"] == "saved"), {})
    metrics = dict(saved.get("metrics", {}))
    for event in events:
        if event["event"] == "metrics" and event.get("save_id") == saved.get("save_id"):
            metrics |= event.get("metrics", {})
    facts = {"step": step, "saved": saved.get("time"), "bytes": saved.get("bytes"), "metrics": finite(metrics)}
    facts |= row(store, policy, step) if exists else _end(events)
    return {**facts, "saved": facts["saved"] or facts.get("created"), "history": events}


def _end(events: list[Row]) -> Row:
    ends = [event for event in events if event["event"] in (*_ENDS, "saved")]
    last = ends[-1] if ends else {"event": "saved"}
    if last["event"] == "saved":
        return {"state": "gone", "ended": None, "reasons": ["the history has no deletion: it was removed by hand"]}
    reasons = last.get("reasons") or [last.get("reason", "the history does not say why")]
    return {"state": _ENDS[last["event"]], "ended": last["time"], "reasons": reasons}
