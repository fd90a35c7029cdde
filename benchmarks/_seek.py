"""Saved states of an epoch, and the child process that finds the next step from one of them.

A state is what a checkpoint and a run folder hold: the catalog's columns, the spec, the cursor and the
bitmap of what was consumed; right after a change also the plan that the checkpoint went by.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from consumed_places import places_before
from numpy.typing import NDArray

from benchmarks import _weblike
from reelworks.core import hash_rng
from reelworks.data.buckets import assign
from reelworks.data.buckets.assign import Clips, Reason
from reelworks.data.schedule import cursor as cursors
from reelworks.data.schedule.cursor import Cursor, Excluded
from reelworks.data.schedule.plan import EpochPlan, PlanSpec, Samples, plan_epoch

SEED = 42


@dataclass(frozen=True)
class State:
    """Where an epoch stands: the plan of its present segment and what earlier ones consumed."""

    clips: Clips
    live: NDArray[np.bool_]
    spec: PlanSpec
    excluded: Excluded
    plan: EpochPlan
    plan_step: int

    def consumed(self) -> Excluded:
        """Places consumed up to the step."""
        done = places_before(self.plan, self.plan_step)
        return self.excluded.with_places(self.plan.ordinal[done], self.plan.copy[done])


def entries(clips: Clips, live: NDArray[np.bool_]) -> Samples:
    """Entries of epoch 0; a clip's ordinal is its row."""
    result = assign.assign(clips, _weblike.buckets(), seed=SEED, epoch=0)
    where = np.flatnonzero((result.reason == Reason.NONE) & live)
    return Samples(clips.uid[where], clips.copy[where], where, result.bucket[where].astype(np.int64))


def segment(clips: Clips, live: NDArray[np.bool_], spec: PlanSpec, excluded: Excluded) -> EpochPlan:
    """Plan what is left of the epoch."""
    left = entries(clips, live)
    return plan_epoch(cursors.remaining_after(left, excluded, clips.uid) if len(excluded.bits) else left, spec, 0)


def change(state: State, *, spec: PlanSpec | None = None, clips: Clips | None = None, live: Any = None) -> State:
    """The state at the first step after a change of spec or catalog; the bitmap holds what was consumed."""
    consumed = state.consumed()
    changed = replace(
        state,
        excluded=consumed,
        plan_step=0,
        spec=spec or state.spec,
        clips=state.clips if clips is None else clips,
        live=state.live if live is None else live,
    )
    made = segment(changed.clips, changed.live, changed.spec, consumed)
    return replace(changed, plan=made, plan_step=made.num_steps // 3)


def edit(state: State) -> tuple[Clips, NDArray[np.bool_]]:
    """A catalog with a hundredth removed, a hundredth edited (a new row of the same uid) and as many new."""
    n = len(state.clips.uid)
    share = hash_rng.hash64("edit", state.clips.uid) % np.uint64(100)
    edited = np.flatnonzero(share == 1)
    new = state.clips.take(edited)
    new = replace(new, uid=hash_rng.hash64("new", new.uid))
    parts = (state.clips, state.clips.take(edited), new)
    columns = [f.name for f in fields(Clips) if getattr(parts[0], f.name) is not None]
    clips = Clips(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in columns})
    return clips, np.concatenate([share > 1, np.ones(len(clips.uid) - n, dtype=np.bool_)])


def save(state: State, folder: Path, former: State | None = None) -> None:
    """Write the state; with `former`, the checkpoint is the former's, and the state's change comes new."""
    folder.mkdir()
    held = former or state
    columns = {name: column for name, column in vars(state.clips).items() if column is not None}
    np.savez(folder / "catalog.npz", live=state.live, **columns)
    (folder / "spec.json").write_text(json.dumps(asdict(state.spec)), encoding="utf-8")
    (folder / "excluded").write_bytes(held.excluded.to_bytes())
    cursor = Cursor(
        *("catalog", 1, held.spec.digest(), held.plan.digest(), held.plan.step_digest(held.plan_step)),
        *(0, 0, 0, held.plan_step, 0, 0, 0, 0, 0, 0),
    )
    (folder / "cursor.json").write_text(json.dumps(asdict(cursor)), encoding="utf-8")
    if former is not None:
        arrays: dict[str, Any] = former.plan.arrays()
        np.savez(folder / "plan.npz", **arrays)


def seek(folder: Path) -> tuple[str, int]:
    """Find the next step: digest of its uids, and its index in the plan."""
    with np.load(folder / "catalog.npz") as stored:
        columns = dict(stored)
    live, clips = columns.pop("live"), Clips(**columns)
    values: dict[str, Any] = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    values |= {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
    spec = PlanSpec(**values)
    cursor = Cursor(**json.loads((folder / "cursor.json").read_text(encoding="utf-8")))
    excluded = Excluded.from_bytes((folder / "excluded").read_bytes())
    if cursor.spec == spec.digest():
        found = segment(clips, live, spec, excluded)
        cursors.check_same(cursor, found)
        return found.step_digest(cursor.plan_step), cursor.plan_step
    with np.load(folder / "plan.npz") as stored:
        former = EpochPlan(**dict(stored))
    done = places_before(former, cursor.plan_step)
    found = segment(clips, live, spec, excluded.with_places(former.ordinal[done], former.copy[done]))
    return found.step_digest(0), 0


def run(folder: Path) -> dict[str, Any]:
    """Seek in a fresh process."""
    command = [sys.executable, "-m", "benchmarks._seek", str(folder)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    return dict(json.loads(out.splitlines()[-1]))


if __name__ == "__main__":
    began = time.perf_counter()
    step_digest, plan_step = seek(Path(sys.argv[1]))
    print(json.dumps({"seconds": time.perf_counter() - began, "next": step_digest, "plan_step": plan_step}))
