"""One step of a run as it was fed: which clips, in which shapes, on which ranks, with which draws.

Nothing of it was logged. The events tell the plan and row that the step went by; from there on it is the
functions that training uses, on the catalog's rows as they were planned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.prepare import contact
from reelworks.prepare.data import RecipeData
from reelworks.prepare.former import FormerData
from reelworks.prepare.segments import plan_of
from reelworks.run import coverage as told
from reelworks.run import events
from reelworks.run.coverage import Epoch, Step
from reelworks.run.folder import RunFolder
from reelworks.schedule.plan import EpochPlan
from reelworks.stream.batches import Work
from reelworks.train import choices, experts
from reelworks.train.choices import Choices
from reelworks.train.feed import Feed

Json = dict[str, Any]


@dataclass(frozen=True)
class Replay:
    """A step that holds.

    Attributes:
        step: What the events say of it.
        epoch: The epoch it belongs to.
        segment: The segment of the epoch, from 0.
        plan: The segment's.
        plan_read: False where the plan's file is gone and it was made again.
        data: The data of the recipe that the step was trained by; its rows are those of the step's clips alone, as they were planned.
        since: What became of each clip's row since, by uid: "unchanged", "edited" or "removed".
        ranks: Micro-batches of each rank in the order in which it trained them, fillers included.
    """

    step: Step
    epoch: Epoch
    segment: int
    plan: EpochPlan
    plan_read: bool
    data: RecipeData
    since: dict[int, str]
    ranks: list[list[Work]]

    @property
    def columns(self) -> list[Work]:
        """Micro-batches of the step in the plan's order, without fillers."""
        return sorted((w for rank in self.ranks for w in rank if not w.filler), key=lambda work: work.index)

    def choices(self, work: Work) -> Choices:
        """What the objective drew for a micro-batch."""
        data, frames = self.data, self.data.geometry.latent(work.shape)[0]
        objective = experts.objective_of_step(
            data.recipe, data.table, data.geometry, self.plan, self.step.row, self.step.step - 1
        )
        return choices.draw(work, objective, seed=data.recipe.seed, latent_frames=frames)

    def to_json(self) -> Json:
        """All of it as plain values."""
        reasons = {uid: list(r) for (step, uid), r in self.epoch.failures.items() if step == self.step.step}
        return {
            "step": self.step.step,
            "generation": self.epoch.generation,
            "epoch": self.epoch.epoch,
            "segment": self.segment,
            "row": self.step.row,
            "plan": self.epoch.plans[self.segment],
            "plan_read": self.plan_read,
            "world_size": len(self.ranks),
            "applied": self.step.applied,
            "clips": self.step.clips,
            "fillers": [rank for rank, works in enumerate(self.ranks) for work in works if work.filler],
            "micro_batches": [self._micro_batch(work, reasons) for work in self.columns],
        }

    def _micro_batch(self, work: Work, reasons: dict[int, list[str]]) -> Json:
        shape, drawn = work.shape, self.choices(work)
        return {
            "column": work.index,
            "rank": work.index % len(self.ranks),
            "bucket": self.data.table.buckets[work.bucket].name,
            "num_frames": shape.num_frames,
            "height": shape.height,
            "width": shape.width,
            "clips": [self._clip(work, i, drawn, reasons) for i in range(len(work.uids))],
        }

    def _clip(self, work: Work, i: int, drawn: Choices, reasons: dict[int, list[str]]) -> Json:
        uid, request, rows = int(work.uids[i]), work.requests[i], self.data.rows
        row = int(rows.find(work.uids[i : i + 1])[0])
        source = Shape(int(rows.num_frames[row]), int(rows.height[row]), int(rows.width[row]))
        first, (top, left, *_), resized = contact.placed(request, source)
        reason = reasons[uid].pop(0) if work.first[i] and reasons.get(uid) else None
        became = "failed" if reason is not None else "trained" if self.step.applied else "skipped"
        return {
            "uid": uid,
            "copy": int(work.copies[i]),
            "showing": int(work.showing[i]),
            "path": f"{rows.dataset[row].as_py()}/{rows.path[row].as_py()}",
            "file": str(request.path),
            "became": became if work.real[i] else "padding",
            "reason": reason,
            "since": self.since[uid],
            "caption": work.captions[i],
            "caption_dropped": bool(drawn.drop_text[i]),
            "fps": work.fps[i],
            "companions": {
                kind: str(read.path)
                for kind, beside in work.companions.items()
                if (read := beside[i]) is not None
            },
            "first_frame": first,
            "frame_step": request.step,
            "resized": [resized.height, resized.width],
            "crop": [top, left],
            "draws": {"first_frame": request.first_frame_draw, "crop": list(request.crop_draw)},
            "timestep_before_shift": float(drawn.unshifted_time[i]),
            "timestep": float(drawn.time[i]),
            "generated": drawn.frame_mask[i].tolist(),
        }


def replay(run: RunFolder, number: int) -> Replay:
    """Say what a step of a run was fed.

    Args:
        run: The run's folder.
        number: The step's, from 1.

    Raises:
        UserError: There is no run, no such step in it holds, or its plan or buckets are gone for good.
    """
    run.info()
    epoch, segment, step = _find(told.epochs(run), number)
    former = FormerData(run)
    found = plan_of(former, epoch, segment)
    if found is None:
        raise UserError(
            f"the plan of epoch {epoch.epoch}, segment {segment}, is gone, and recipe and catalog of then do not give it "
            "again",
            field="--step",
            value=number,
            remedy=f"bring back {run.plan_folder} or {run.recipes_folder} from a backup of the run, or ask for a later "
            "step",
        )
    data = former.of(step.recipe)
    plan, plan_read = found
    event, world = _event(run, number)
    _check_buckets(data, plan, step, event)
    then, since = _rows_of(data, plan, step)
    ranks = [list(Feed(then, rank, world).row(plan, epoch.epoch, step.row)) for rank in range(world)]
    return Replay(step, epoch, segment, plan, plan_read, then, since, ranks)


def _find(epochs: list[Epoch], number: int) -> tuple[Epoch, int, Step]:
    """The epoch and segment of a step; steps that a resume undid do not hold."""
    done = [(e, segment, s) for e in epochs for segment, steps in e.steps.items() for s in steps]
    for epoch, segment, step in done:
        if step.step == number:
            return epoch, segment, step
    last = max((step.step for *_, step in done), default=0)
    raise UserError(
        "no such step of the run holds",
        field="--step",
        value=number,
        remedy=f"name one from 1 to {last}" if last else "the run has trained no step yet; train first",
    )


def _event(run: RunFolder, number: int) -> tuple[Json, int]:
    """The event of a step that holds, and the ranks that trained it."""
    found: Json = {}
    world = then = 1
    for event in events.timeline(run.events_file, "start", "step"):
        if event["kind"] == "start":
            world = event["world_size"]
        elif event["step"] == number:
            found, then = event, world
    return found, then


def _check_buckets(data: RecipeData, plan: EpochPlan, step: Step, event: Json) -> None:
    """Refuse where the step's tokens or buckets were others: a plan holds numbers of buckets, not shapes."""
    places = [plan.places(int(m)) for m in plan.micro_batches(step.row)]
    indices = [int(plan.bucket[where.start]) for where in places]
    buckets = data.table.buckets
    same = max(indices) < len(buckets)
    if same:
        clips = [int(plan.real[where].sum()) for where in places]
        tokens = sum(buckets[i].tokens * n for i, n in zip(indices, clips, strict=True))
        same = tokens == event["tokens"] and set(event["buckets"]) <= {buckets[i].name for i in indices}
    if not same:
        raise UserError(
            "the buckets that the recipe gives are not those that this step was trained with",
            field="--step",
            value=step.step,
            remedy=f"bring back recipes/{step.recipe} in the run folder as it was, or replay it with the version of "
            "reelworks that trained it",
        )


def _rows_of(data: RecipeData, plan: EpochPlan, step: Step) -> tuple[RecipeData, dict[int, str]]:
    """The data with the rows that a step's clips had when they were planned, and what became of them."""
    places = np.concatenate([np.r_[plan.places(int(m))] for m in plan.micro_batches(step.row)])
    every, ordinal = data.catalog.all_rows(), np.unique(plan.ordinal[places])
    known = ordinal[-1] < len(every) and np.array_equal(every.uid[plan.ordinal[places]], plan.uid[places])
    if not known:
        raise UserError(
            "the catalog is not the one that the step was planned on",
            field="--step",
            value=step.step,
            remedy=f"bring back the catalog {data.recipe.catalog_folder} that the run was trained with",
        )
    rows = every.take(ordinal)
    live = data.rows.find(rows.uid)
    now = np.where(live < 0, -1, data.rows.ordinal[live] if len(data.rows) else -1)
    words = [
        "removed" if n < 0 else "unchanged" if n == o else "edited" for n, o in zip(now, ordinal, strict=True)
    ]
    return replace(data, rows=rows), dict(zip(rows.uid.tolist(), words, strict=True))
