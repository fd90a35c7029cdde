"""Reconstruct the inputs of one step of a run: its clips, shapes, ranks and random draws.

The events give the step's segment and row, the record of the segment gives its clips. The functions of training then
draw again, on the catalog rows that the run keeps with its records.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reelworks.analysis import contact_sheet
from reelworks.catalog.store import Catalog
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data import segment_record
from reelworks.data.loader import StepSource
from reelworks.data.micro_batch import MicroBatchRequest
from reelworks.recipe import recipe_file
from reelworks.recipe.dataset import RecipeData
from reelworks.run import history, records
from reelworks.run.folder import RunFolder
from reelworks.run.history import Epoch, RunStep
from reelworks.run.records import Record, RecordError
from reelworks.schedule.plan import EpochPlan
from reelworks.train import batch_inputs
from reelworks.train.batch_inputs import RandomDraws

# Columns of the catalog that change when a clip is edited.
_CONTENT = ("fingerprint", "caption")


@dataclass(frozen=True)
class Replay:
    """A step that no resume has discarded.

    Attributes:
        plan: Plan with the step's row only.
        data: Data of the recipe that trained the step; its rows are the step's clips, as they were planned.
        since: Change of each clip since, by uid: "unchanged", "edited", "removed", or "unknown" if the catalog cannot
            be read.
        ranks: Micro-batches of each rank in the order of training, with fillers.
    """

    step: RunStep
    epoch: Epoch
    segment: int
    plan: EpochPlan
    data: RecipeData
    since: dict[int, str]
    ranks: list[list[MicroBatchRequest]]

    @property
    def columns(self) -> list[MicroBatchRequest]:
        """The micro-batches in the plan's order, without fillers."""
        return sorted((w for rank in self.ranks for w in rank if not w.is_idle), key=lambda work: work.index)

    def choices(self, work: MicroBatchRequest) -> RandomDraws:
        """Draw timesteps, masks and dropped captions of a micro-batch again."""
        data, latent = self.data, self.data.geometry.latent(work.shape)
        objective = batch_inputs.objective_of_step(
            data.recipe, data.table, data.geometry, plan=self.plan, row=0, step=self.step.step - 1
        )
        words_B = batch_inputs.draw_state(work, data.recipe.seed)
        return batch_inputs.draw(work, objective, words_B, latent=latent)

    def to_json(self) -> dict[str, Any]:
        """Return the step as plain values."""
        failures = self.epoch.failures.get(self.step.step, [])
        reasons = {(failure["uid"], failure["copy"]): failure["reason"] for failure in failures}
        return {
            "step": self.step.step,
            "data_restarts": self.epoch.data_restarts,
            "epoch": self.epoch.epoch,
            "segment": self.segment,
            "row": self.step.row,
            "plan": self.epoch.plans[self.segment],
            "world_size": len(self.ranks),
            "applied": self.step.applied,
            "clips": self.step.clips,
            "fillers": [rank for rank, works in enumerate(self.ranks) for work in works if work.is_idle],
            "micro_batches": [self._micro_batch(work, reasons) for work in self.columns],
        }

    def _micro_batch(self, work: MicroBatchRequest, reasons: dict[tuple[int, int], str]) -> dict[str, Any]:
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

    def _clip(
        self, work: MicroBatchRequest, i: int, drawn: RandomDraws, reasons: dict[tuple[int, int], str]
    ) -> dict[str, Any]:
        uid, request, rows = int(work.uids[i]), work.requests[i], self.data.rows
        row = int(rows.find(work.uids[i : i + 1])[0])
        source = Shape(int(rows.num_frames[row]), int(rows.height[row]), int(rows.width[row]))
        first, (top, left, *_), resized = contact_sheet.placed(request, source)
        reason = reasons.get((uid, int(work.copies[i]))) if work.is_first_use[i] else None
        became = "failed" if reason is not None else "trained" if self.step.applied else "skipped"
        return {
            "uid": uid,
            "copy": int(work.copies[i]),
            "repeat_index": int(work.repeat_index[i]),
            "path": rows.label(row),
            "file": str(request.path),
            "became": became if work.real[i] else "padding",
            "reason": reason,
            "since": self.since[uid],
            "caption": work.captions[i],
            "caption_dropped": bool(drawn.drop_text[i]),
            "fps": work.fps[i],
            "companions": {
                kind: str(companion.path)
                for kind, requests in work.companions.items()
                if (companion := requests[i]) is not None
            },
            "first_frame": first,
            "frame_step": request.step,
            "resized": [resized.height, resized.width],
            "crop": [top, left],
            "augmentation": asdict(request.augmentation),
            "draws": {"first_frame": request.first_frame_draw, "crop": list(request.crop_draw)},
            "timestep_before_shift": float(drawn.unshifted_time[i]),
            "timestep": float(drawn.time[i]),
            "generated": drawn.frame_mask[i].tolist(),
            "mask": asdict(mask) if work.masks and (mask := work.masks[i]) is not None else None,
        }


def replay_step(run: RunFolder, number: int) -> Replay:
    """Reconstruct a step of a run, counted from 1."""
    run.info()
    epoch, segment, step = _find(history.epochs(run), number)
    try:
        record = records.read(run, (epoch.data_restarts, epoch.epoch, segment), epoch.plans[segment])
        catalog = segment_record.recorded_catalog(run, record.about)
    except RecordError as error:
        raise UserError(
            f"the record of the step's clips is lost: {error}",
            code="clips-unknown",
            field="--step",
            value=number,
            remedy=f"restore {run.coverage_folder} from a backup of the run, or name a later step",
        ) from None
    recipe = recipe_file.load(run.recipes_folder / step.recipe).model_copy(update={"output": str(run.path)})
    plan = _row_of(record, catalog, step.row)
    data = RecipeData.of_rows(recipe, catalog, np.unique(plan.ordinal))
    _check_buckets(data, record, step)
    ranks = [list(StepSource(data, i, step.world_size).row(plan, epoch.epoch, 0)) for i in range(step.world_size)]
    return Replay(step, epoch, segment, plan, data, _changes_since(run, data), ranks)


def _row_of(record: Record, catalog: Catalog, row: int) -> EpochPlan:
    first, last = np.searchsorted(record.row, [row, row + 1])
    ends = np.cumsum(record.size)
    places = slice(int(ends[first] - record.size[first]), int(ends[last - 1]))
    ordinal, size = record.ordinal[places], record.size[first:last]
    rows = np.full((1, record.about.spec["micro_batches_per_step"]), -1, dtype=np.int64)
    rows[0, record.column[first:last]] = np.arange(last - first)
    return EpochPlan(
        uid=catalog.uids()[ordinal],
        copy=record.copy[places],
        ordinal=ordinal,
        bucket=np.repeat(record.bucket[first:last], size),
        repeat_index=record.repeat_index[places],
        offsets=np.concatenate([[0], np.cumsum(size)]),
        rows=rows,
    )


def _find(epochs: list[Epoch], number: int) -> tuple[Epoch, int, RunStep]:
    """Return a step with its epoch and segment; steps that a resume discarded are not found."""
    done = [(e, segment, s) for e in epochs for segment, steps in e.steps.items() for s in steps]
    for epoch, segment, step in done:
        if step.step == number:
            return epoch, segment, step
    last = max((step.step for *_, step in done), default=0)
    raise UserError(
        "the run has no such step, or has discarded it at a resume",
        code="no-such-step",
        field="--step",
        value=number,
        remedy=f"name a step from 1 to {last}" if last else "the run has trained no step yet; train first",
    )


def _check_buckets(data: RecipeData, record: Record, step: RunStep) -> None:
    computed = [(b.name, b.shape.num_frames, b.shape.height, b.shape.width) for b in data.table.buckets]
    recorded = [(b.name, b.num_frames, b.height, b.width) for b in record.about.buckets]
    if computed != recorded:
        raise UserError(
            "the recipe's buckets are not those that the step was trained with",
            code="buckets-differ",
            field="--step",
            value=step.step,
            remedy=f"restore recipes/{step.recipe} in the run folder, or replay the step with the version of reelworks "
            "that trained it",
        )


def _changes_since(run: RunFolder, planned: RecipeData) -> dict[int, str]:
    """Compare a step's clips with the current catalog; see `Replay.since`."""
    rows = planned.rows
    uids = rows.uid.tolist()
    try:
        folder = recipe_file.load(run.recipe_file).model_copy(update={"output": str(run.path)}).catalog_folder
        live = Catalog.open(Path(folder)).live()
    except UserError:
        return dict.fromkeys(uids, "unknown")
    found = live.find(rows.uid)
    current = live.take(np.maximum(found, 0)) if len(live) else rows
    since = {}
    for i, uid in enumerate(uids):
        same = all(getattr(current, name)[i].as_py() == getattr(rows, name)[i].as_py() for name in _CONTENT)
        since[uid] = "removed" if found[i] < 0 else "unchanged" if same else "edited"
    return since
