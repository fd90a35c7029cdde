"""A position in the data of a run: where it starts, how it advances, how a resume finds it again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace

import numpy as np

from reelworks.buckets.assign import Reason
from reelworks.core.errors import UserError
from reelworks.prepare import left_out, segments
from reelworks.prepare.data import RecipeData
from reelworks.prepare.former import FormerData
from reelworks.run import coverage as told
from reelworks.run import plans
from reelworks.run.folder import RunFolder
from reelworks.schedule import cursor as cursors
from reelworks.schedule.cursor import Cursor, Excluded
from reelworks.schedule.plan import EpochPlan, PlanSpec

# So many empty epochs in a row are no chance any more.
_EMPTY_EPOCHS = 1000


@dataclass(frozen=True)
class Counts:
    """What became of an epoch's clips so far."""

    planned: int = 0
    trained: int = 0
    failed: int = 0
    skipped: int = 0
    repeated: int = 0

    def add(self, trained: int, failed: int, skipped: int, repeated: int) -> Counts:
        """Counts after one more step."""
        return replace(
            self,
            trained=self.trained + trained,
            failed=self.failed + failed,
            skipped=self.skipped + skipped,
            repeated=self.repeated + repeated,
        )


@dataclass(frozen=True)
class Position:
    """The row to train next, with the plan that holds it."""

    spec: PlanSpec
    plan: EpochPlan
    excluded: Excluded
    counts: Counts
    generation: int
    epoch: int
    segment: int
    row: int
    global_step: int

    @property
    def at_end(self) -> bool:
        """True when the epoch's rows are done."""
        return self.row >= self.plan.steps

    def to_cursor(self, data: RecipeData) -> Cursor:
        """What a checkpoint holds of it; the excluded clips are stored beside."""
        return Cursor(
            catalog=data.digest,
            catalog_version=data.catalog.version,
            spec=self.spec.digest(),
            plan=self.plan.digest(),
            next_row=self.plan.row_digest(self.row),
            generation=self.generation,
            epoch=self.epoch,
            segment=self.segment,
            row=self.row,
            global_step=self.global_step,
            planned=self.counts.planned,
            trained=self.counts.trained,
            failed=self.counts.failed,
            skipped=self.counts.skipped,
            repeated=self.counts.repeated,
        )


def begin_epoch(
    data: RecipeData, spec: PlanSpec, *, epoch: int, global_step: int = 0, generation: int = 0
) -> Position:
    """The first row of an epoch.

    Raises:
        UserError: The epoch has no step; names every bucket with its clips and what would cure it.
    """
    epoch_plan = data.plan(spec, epoch, generation=generation)
    if epoch_plan.steps == 0:
        raise no_steps(data, epoch)
    counts = Counts(planned=epoch_plan.planned)
    return Position(spec, epoch_plan, Excluded.none(), counts, generation, epoch, 0, 0, global_step)


def next_epoch(
    data: RecipeData, spec: PlanSpec, position: Position | None, *, generation: int = 0
) -> tuple[Position, list[int]]:
    """The first row of the next epoch that has one; of the first epoch, without a position.

    With `keep_prob` below 1 a small set may draw no clip at all in an epoch: such epochs are passed over.

    Returns:
        The position, and the epochs passed over.

    Raises:
        UserError: No epoch can have a step.
    """
    first = 0 if position is None else position.epoch + 1
    generation = generation if position is None else position.generation
    for epoch in range(first, first + _EMPTY_EPOCHS):
        if data.plan(spec, epoch, generation=generation).steps or not _may_be_drawn(data, epoch):
            break
    begun = begin_epoch(
        data,
        spec,
        epoch=epoch,
        global_step=0 if position is None else position.global_step,
        generation=generation,
    )
    return begun, list(range(first, epoch))


def _may_be_drawn(data: RecipeData, epoch: int) -> bool:
    result, _ = data.assignment(epoch)
    return bool((result.reason == Reason.NOT_DRAWN).any())


def resume(
    data: RecipeData, spec: PlanSpec, run: RunFolder, cursor: Cursor, excluded: Excluded
) -> tuple[Position, list[str]]:
    """Find a checkpoint's place again, whatever changed since.

    Where catalog and spec are the same, the plan is built again and must be the same. Otherwise the live
    clips that are not consumed are planned as a new segment of the epoch.

    Returns:
        The position, and the differences as lines for people; empty where nothing changed.

    Raises:
        UserError: The plan that the checkpoint went by is needed and missing, or not the same again.
    """
    counts = Counts(cursor.planned, cursor.trained, cursor.failed, cursor.skipped, cursor.repeated)
    same = (cursor.catalog, cursor.spec) == (data.digest, spec.digest())
    if same:
        segment_plan = data.plan(
            spec, cursor.epoch, generation=cursor.generation, segment=cursor.segment, excluded=excluded
        )
        cursors.check_same(cursor, segment_plan)
        found = Position(
            spec,
            segment_plan,
            excluded,
            counts,
            cursor.generation,
            cursor.epoch,
            cursor.segment,
            cursor.row,
            cursor.global_step,
        )
        return found, []
    consumed = _consumed(data, run, cursor, excluded)
    segment_plan = data.plan(
        spec, cursor.epoch, generation=cursor.generation, segment=cursor.segment + 1, excluded=consumed
    )
    done = counts.trained + counts.failed + counts.skipped
    counts = replace(counts, planned=done + segment_plan.planned)
    found = Position(
        spec,
        segment_plan,
        consumed,
        counts,
        cursor.generation,
        cursor.epoch,
        cursor.segment + 1,
        0,
        cursor.global_step,
    )
    return found, _difference(data, spec, cursor, done, segment_plan)


def _consumed(data: RecipeData, run: RunFolder, cursor: Cursor, excluded: Excluded) -> Excluded:
    """Clips consumed when the checkpoint was written, by the plan that it went by."""
    former = _former_plan(run, cursor)
    done = former.places_before(cursor.row)
    uid, copy = former.uid[done], former.copy[done]
    ordinal = former.ordinal[done]
    if not _same_catalog(data, former, excluded):
        if excluded.bits.any():
            raise UserError(
                "the catalog was made anew in mid-epoch, so clips done before it cannot be told any more",
                field="catalog",
                value=str(data.catalog.path),
                remedy="restore the former catalog, or begin the data again with --start-from-scratch",
            )
        ordinal = data.catalog.live_ordinals(uid)
    still = ordinal >= 0
    return excluded.with_places(ordinal[still], copy[still])


def _former_plan(run: RunFolder, cursor: Cursor) -> EpochPlan:
    arrays = plans.read(run, cursor.generation, cursor.epoch, cursor.segment)
    names = {f.name for f in fields(EpochPlan)}
    former = EpochPlan(**arrays) if arrays is not None and arrays.keys() == names else None
    if former is None or former.digest() != cursor.plan:
        former = _made_again(run, cursor)
    if former is None:
        raise UserError(
            "the data changed since the checkpoint, the plan it went by is missing or damaged, and what the run "
            "keeps of recipe and catalog does not give it again",
            field="resume",
            value=str(plans.path(run, cursor.generation, cursor.epoch, cursor.segment)),
            remedy="restore that folder, or begin the data again with --start-from-scratch",
        )
    return former


def _made_again(run: RunFolder, cursor: Cursor) -> EpochPlan | None:
    """The plan of a cursor, by the recipe and the catalog's version that the run's events tell of."""
    for epoch in told.epochs(run):
        same = (epoch.generation, epoch.epoch) == (cursor.generation, cursor.epoch)
        if same and epoch.plans.get(cursor.segment) == cursor.plan:
            found = segments.plan_of(FormerData(run), epoch, cursor.segment)
            return None if found is None else found[0]
    return None


def _same_catalog(data: RecipeData, former: EpochPlan, excluded: Excluded) -> bool:
    """Tell a catalog that grew from one that was deleted and made anew, whose ordinals mean other clips."""
    uid = data.catalog.all_rows().uid
    consumed, _ = excluded.places()
    if max(former.ordinal.max(initial=-1), consumed.max(initial=-1)) >= len(uid):
        return False
    return bool(np.array_equal(uid[former.ordinal], former.uid))


def _difference(data: RecipeData, spec: PlanSpec, cursor: Cursor, done: int, rest: EpochPlan) -> list[str]:
    lines = []
    if cursor.catalog != data.digest:
        lines.append(_catalog_difference(data, cursor))
    if cursor.spec != spec.digest():
        lines.append(
            "buckets, batch sizes, costs, what is trained of the datasets, the step's shape or the seed differ from "
            "the checkpoint's"
        )
    lines.append(f"epoch {cursor.epoch}: {done} clips done, {rest.planned} left in {rest.steps} new steps")
    return lines


def _catalog_difference(data: RecipeData, cursor: Cursor) -> str:
    """Clips added, removed and edited since a checkpoint; its version of the catalog can be read again."""
    try:
        former = RecipeData.open(data.recipe, cursor.catalog_version)
    except UserError:
        return f"catalog: version {cursor.catalog_version} is not there any more, {data.catalog.version} now"
    then = former.rows
    added = int((~np.isin(data.rows.uid, then.uid)).sum())
    removed = int((~np.isin(then.uid, data.rows.uid)).sum())
    same = then.find(data.rows.uid)
    known = same >= 0
    edited = int((then.ordinal[same[known]] != data.rows.ordinal[known]).sum())
    told = f"catalog: {added} clips added, {removed} removed, {edited} changed"
    beside = len(np.setxor1d(data.companion_rows.ordinal, former.companion_rows.ordinal))
    return told + (f"; {beside} rows of companions came or went" if beside else "")


def start_again(data: RecipeData, spec: PlanSpec, cursor: Cursor) -> Position:
    """The first row of epoch 0 in a new generation of the data; steps count on."""
    begun, _ = next_epoch(data, spec, None, generation=cursor.generation + 1)
    return replace(begun, global_step=cursor.global_step)


def write_plan(run: RunFolder, position: Position, in_use: Collection[tuple[int, int]] = ()) -> None:
    """Keep a segment's plan in the run folder, for a resume after changes.

    Args:
        run: The run folder.
        position: Where the segment begins.
        in_use: Generations and epochs whose plans a checkpoint may still ask for.
    """
    now = position.generation, position.epoch
    plans.write(run, *now, position.segment, position.plan.arrays())
    plans.drop(run, in_use, now)


def no_steps(data: RecipeData, epoch: int = 0) -> UserError:
    """The error for an epoch without a step: every entry with its clips, and what would cure it."""
    result, _ = data.assignment(epoch)
    if (error := left_out.mostly(data.recipe, result.reason)) is not None:
        return error
    lines = []
    for index, entry in enumerate(data.table.entries):
        inside = np.isin(result.bucket, data.table.of_entry(index)) & (result.reason == Reason.NONE)
        lines.append(f"{entry}: {int(inside.sum())} clips")
    reasons = [
        f"{reason.label}: {int((result.reason == reason).sum())}"
        for reason in Reason
        if reason != Reason.NONE and (result.reason == reason).any()
    ]
    fits = (result.reason == Reason.NOT_DRAWN).any()
    problem = "no clip that fits a bucket is drawn" if fits else "no clip fits any bucket"
    return UserError(
        f"{problem}, so an epoch would have no step ({'; '.join(lines)}; {', '.join(reasons)})",
        field="bucket",
        remedy=("raise bucket.keep_prob or dataset.weight, " if fits else "")
        + "lower bucket.num_frames or bucket.resolution to what the clips have, or set buckets.upscale = true",
    )
