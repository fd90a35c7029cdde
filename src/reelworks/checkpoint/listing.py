"""Answer questions about checkpoints as JSON values: which there are, and why one stayed or went."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from reelworks.checkpoint import names, retention
from reelworks.checkpoint.config import Retention
from reelworks.checkpoint.manifest import BadCheckpoint
from reelworks.checkpoint.policy import Decision, rank_best
from reelworks.checkpoint.store import CheckpointInfo, CheckpointStore
from reelworks.checkpoint.verify import verify
from reelworks.core.errors import UserError

Row = dict[str, Any]
# Events of the history that end a checkpoint; the first of them is told before its deletion, which then happened
# if the checkpoint is not there.
_ENDS = {"deleting": "deleted", "deleted": "deleted", "quarantined": "set aside"}


def rows(store: CheckpointStore, policy: Retention) -> list[Row]:
    """Every checkpoint with what the policy does to it at the next save; damaged ones too, oldest first."""
    good, broken = store.scan()
    decisions = {decision.step: decision for decision in retention.plan(store, policy)}
    # What went since it was listed was deleted by a training.
    there = (info for info in good if info.step in decisions or info.path.exists())
    listed = [_row(info, decisions.get(info.step)) for info in there]
    listed += [
        {"step": b.step, "path": b.path, "state": "damaged", "keep": None, "reasons": [b.reason]}
        for b in broken
    ]
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
        return {**row, "state": "damaged", "keep": None, "reasons": [_damage(info)]}
    state = "kept" if decision.keep else "goes"
    return {**row, "state": state, "keep": decision.keep, "reasons": list(decision.reasons)}


def _damage(info: CheckpointInfo) -> str:
    try:
        verify(info.path, full=False)
    except BadCheckpoint as error:
        return error.reason
    except OSError as error:
        return f"cannot be read now ({error.strerror or error})"
    return "damaged a moment ago"


def epoch(info: CheckpointInfo) -> int | None:
    """Epoch of a checkpoint's cursor, from 0; None if it has none that can be read."""
    try:
        value = json.loads((info.path / names.CURSOR).read_text())["epoch"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, int) else None


def finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics that are numbers."""
    return {name: v for name, v in metrics.items() if v is not None and math.isfinite(v)}


def row(store: CheckpointStore, policy: Retention, step: int) -> Row:
    """One of `rows`.

    Raises:
        UserError: There is no such checkpoint.
    """
    found = next((one for one in rows(store, policy) if one["step"] == step), None)
    if found is None:
        raise store.unknown(step)
    return found


def details(store: CheckpointStore, policy: Retention, step: int) -> Row:
    """A row and all of its manifest.

    Raises:
        UserError: There is no such checkpoint.
    """
    told = row(store, policy, step)
    if "bytes" not in told:  # no manifest that can be read
        return told
    manifest = store.info(step).manifest.model_dump(mode="json")
    return {
        **{key: manifest[key] for key in ("save_id", "run_id", "world_size", "versions", "files")},
        **told,
    }


def best(store: CheckpointStore, policy: Retention) -> Row:
    """The row of the best checkpoint by the recipe's `keep_best`.

    Raises:
        UserError: There is no rule, or none of the checkpoints was measured.
    """
    ranked = rank_best(retention.whole(store), policy.keep_best)
    if not ranked:
        metric = policy.keep_best and policy.keep_best.metric
        raise UserError(
            f"no checkpoint has a finite {metric}" if metric else "the recipe does not say by what",
            code="no-metric",
            field="checkpoints.keep_best",
            value=metric or "none",
            remedy="validate more often with validation.every_steps, or name another metric"
            if metric
            else 'give it in the recipe, e.g. keep_best = { metric = "validation/loss", mode = "min" }',
        )
    return row(store, policy, ranked[0])


def verified(store: CheckpointStore, steps: list[int], full: bool) -> list[Row]:
    """Check checkpoints against their manifests, by size or also by digest; looking changes nothing."""
    listed = []
    for step in steps:
        reason = ""
        try:
            verify(store.path(step), full)
        except BadCheckpoint as error:
            reason = error.reason
        except OSError as error:
            reason = f"cannot be read now ({error.strerror or error})"
        if reason and not store.path(step).exists():
            continue  # deleted meanwhile by a training
        listed.append({"step": step, "path": store.path(step), "good": not reason, "reason": reason})
    return listed


def explain(store: CheckpointStore, policy: Retention, step: int) -> Row:
    """Say what became of a step's checkpoint and why, whether it is still there or not.

    Raises:
        UserError: There never was one, as far as is known.
    """
    history = store.history()
    events = [event for event in history if event.get("step") == step]
    here = step in store.steps()
    if not here and not events:
        known = sorted({*store.steps(), *(event["step"] for event in history if "step" in event)})
        raise UserError(
            "nothing is known of a checkpoint of this step",
            code="unknown-checkpoint",
            field="STEP",
            value=step,
            remedy=f"known are: {', '.join(map(str, known)) or 'none'}",
        )
    saved: Row = next((event for event in reversed(events) if event["event"] == "saved"), {})
    told = {
        "step": step,
        "saved": saved.get("time"),
        "bytes": saved.get("bytes"),
        "metrics": _metrics(saved, events),
        **(row(store, policy, step) if here else _end(events)),
    }
    return {**told, "saved": told["saved"] or told.get("created"), "history": events}


def _metrics(saved: Row, events: list[Row]) -> dict[str, float]:
    metrics = dict(saved.get("metrics", {}))
    for event in events:
        if event["event"] == "metrics" and event.get("save_id") == saved.get("save_id"):
            metrics |= event.get("metrics", {})
    return finite(metrics)


def _end(events: list[Row]) -> Row:
    ends = [event for event in events if event["event"] in (*_ENDS, "saved")]
    last = ends[-1] if ends else {"event": "saved"}
    if last["event"] == "saved":
        return {"state": "gone", "ended": None, "reasons": ["nothing here deleted it: removed by hand"]}
    reasons = last.get("reasons") or [last.get("reason", "the history does not say why")]
    return {"state": _ENDS[last["event"]], "ended": last["time"], "reasons": reasons}
