"""A checkpoint's position in the data, found again whatever changed since."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from reelworks.core.errors import UserError
from reelworks.prepare import segments
from reelworks.prepare.data import RecipeData
from reelworks.prepare.former import FormerData
from reelworks.prepare.position import Counts, Position
from reelworks.run import coverage as told
from reelworks.run import plans
from reelworks.run.folder import RunFolder
from reelworks.schedule import cursor as cursors
from reelworks.schedule.cursor import Cursor, Excluded
from reelworks.schedule.plan import EpochPlan, PlanSpec


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
