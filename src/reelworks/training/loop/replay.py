"""Reconstruct the inputs of one step of a run: its clips, shapes, ranks and random draws.

The events give the step's segment and its place in the plan, the record of the segment gives its clips. The functions
of training then draw again, on the catalog rows that the run keeps with its records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reelworks.core import results
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import segment_record
from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.data.loader.part_masks import PartMask
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.augment import Augmentation
from reelworks.data.run import history, records
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.history import Epoch, RunStep
from reelworks.data.run.records import Record, RecordError
from reelworks.data.schedule.plan import EpochPlan
from reelworks.training.coverage import contact_sheet
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.step import draws
from reelworks.training.step.draws import RandomDraws

# Columns of the catalog that change when a clip is edited.
_CONTENT = ("fingerprint", "caption")


@dataclass(frozen=True)
class ClipDraws:
    """Random numbers in [0, 1) that chose a clip's first frame and crop."""

    first_frame: float
    crop: tuple[float, float]


@dataclass(frozen=True)
class ReplayedClip:
    """A clip as a step was trained on it.

    Attributes:
        path: Its name in the catalog.
        became: "trained", "failed", "skipped", or "padding".
        reason: Why it failed.
        since: Its change since, see `Replay.since`.
        companions: File of each kind that it has.
        resized, crop: Size in pixels that its frames were resized to, and top and left of the crop.
        timestep_before_shift, timestep: Timestep as it was drawn, and as the model got it.
        generated: False for each latent frame that was given to the model as a condition.
    """

    uid: int
    copy: int
    repeat_index: int
    path: str
    file: str
    became: str
    reason: str | None
    since: str
    caption: str
    caption_dropped: bool
    fps: float
    companions: dict[str, str]
    first_frame: int
    frame_step: float
    resized: tuple[int, int]
    crop: tuple[int, int]
    augmentation: Augmentation
    draws: ClipDraws
    timestep_before_shift: float
    timestep: float
    generated: list[bool]
    mask: PartMask | None


@dataclass(frozen=True)
class ReplayedMicroBatch:
    """A micro-batch of a step; its column is its place in the plan."""

    column: int
    rank: int
    bucket: str
    shape: Shape = field(metadata=results.INLINED)
    clips: list[ReplayedClip]


@dataclass(frozen=True)
class ReplayedStep:
    """A step as it was trained, with its clips and random draws.

    Attributes:
        clips: Clips that counted in the loss.
        applied: False if the step was skipped.
        fillers: Rank of each micro-batch without a clip.
        stage: Name of the recipe's stage; empty without stages.
    """

    step: int
    data_restarts: int
    epoch: int
    segment: int
    plan_step: int
    plan: str
    world_size: int
    applied: bool
    clips: int
    fillers: list[int]
    stage: str
    micro_batches: list[ReplayedMicroBatch]


@dataclass(frozen=True)
class ReplayReport:
    """A replayed step, and the contact sheets that were drawn of it."""

    step: ReplayedStep = field(metadata=results.INLINED)
    sheets: list[Path]


@dataclass(frozen=True)
class Replay:
    """A step that no resume has discarded.

    Attributes:
        plan: Plan with this step only.
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
        objective = draws.objective_of_step(
            data.recipe, data.table, data.geometry, plan=self.plan, plan_step=0, step=self.step.step - 1
        )
        return draws.draw(work, objective, draws.draw_state(work, data.recipe.seed), latent=latent)

    def summary(self) -> ReplayedStep:
        """Return the step as it is shown, with all random choices drawn again."""
        failures = self.epoch.failures.get(self.step.step, [])
        reasons = {(each["uid"], each["copy"], each["repeat_index"]): each["reason"] for each in failures}
        micro_batches = []
        for work in self.columns:
            bucket, drawn = self.data.table.buckets[work.bucket].name, self.choices(work)
            clips = [self._clip(work, i, drawn, reasons) for i in range(len(work.uids))]
            rank = work.index % len(self.ranks)
            micro_batches.append(ReplayedMicroBatch(work.index, rank, bucket, work.shape, clips))
        return ReplayedStep(
            step=self.step.step,
            data_restarts=self.epoch.data_restarts,
            stage=self.epoch.stage,
            epoch=self.epoch.epoch,
            segment=self.segment,
            plan_step=self.step.plan_step,
            plan=self.epoch.plans[self.segment],
            world_size=len(self.ranks),
            applied=self.step.applied,
            clips=self.step.clips,
            fillers=[rank for rank, works in enumerate(self.ranks) for work in works if work.is_idle],
            micro_batches=micro_batches,
        )

    def _clip(
        self, work: MicroBatchRequest, i: int, drawn: RandomDraws, reasons: dict[tuple[int, int, int], str]
    ) -> ReplayedClip:
        uid, request, rows = int(work.uids[i]), work.requests[i], self.data.rows
        row = int(rows.find(work.uids[i : i + 1])[0])
        source = Shape(int(rows.num_frames[row]), int(rows.height[row]), int(rows.width[row]))
        first, (top, left, *_), resized = contact_sheet.placed(request, source)
        reason = reasons.get((uid, int(work.copies[i]), int(work.repeat_index[i])))
        became = "failed" if reason is not None else "trained" if self.step.applied else "skipped"
        files = {kind: requests[i] for kind, requests in work.companions.items()}
        return ReplayedClip(
            uid=uid,
            copy=int(work.copies[i]),
            repeat_index=int(work.repeat_index[i]),
            path=rows.label(row),
            file=str(request.path),
            became=became if work.real[i] else "padding",
            reason=reason,
            since=self.since[uid],
            caption=work.captions[i],
            caption_dropped=bool(drawn.drop_text[i]),
            fps=work.fps[i],
            companions={kind: str(file.path) for kind, file in files.items() if file is not None},
            first_frame=first,
            frame_step=request.step,
            resized=(resized.height, resized.width),
            crop=(top, left),
            augmentation=request.augmentation,
            draws=ClipDraws(request.first_frame_draw, request.crop_draw),
            timestep_before_shift=float(drawn.unshifted_time[i]),
            timestep=float(drawn.time[i]),
            generated=drawn.frame_mask[i].tolist(),
            mask=work.masks[i] if work.masks else None,
        )


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
    plan = _plan_of_step(record, catalog, step.plan_step)
    data = RecipeData.of_rows(recipe, catalog, np.unique(plan.ordinal))
    _check_buckets(data, record, step)
    ranks = [
        list(StepSource(data, i, step.world_size).requests_of_step(plan, epoch.epoch, 0))
        for i in range(step.world_size)
    ]
    return Replay(step, epoch, segment, plan, data, _changes_since(run, data), ranks)


def _plan_of_step(record: Record, catalog: Catalog, plan_step: int) -> EpochPlan:
    first, last = np.searchsorted(record.plan_step, [plan_step, plan_step + 1])
    ends = np.cumsum(record.size)
    places = slice(int(ends[first] - record.size[first]), int(ends[last - 1]))
    ordinal, size = record.ordinal[places], record.size[first:last]
    steps = np.full((1, record.about.spec["micro_batches_per_step"]), -1, dtype=np.int64)
    steps[0, record.column[first:last]] = np.arange(last - first)
    return EpochPlan(
        uid=catalog.uids()[ordinal],
        copy=record.copy[places],
        ordinal=ordinal,
        bucket=np.repeat(record.bucket[first:last], size),
        repeat_index=record.repeat_index[places],
        offsets=np.concatenate([[0], np.cumsum(size)]),
        steps=steps,
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
            remedy=f"restore recipes/{step.recipe} in the run folder, or replay with the version that trained the step",
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
