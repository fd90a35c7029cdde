"""Restore a checkpoint's position in the data, even if the data or the buckets changed since."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from reelworks.core import blocks, units
from reelworks.core.errors import UserError
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader import clip_uses, duplicates, held_out, position, segment_record
from reelworks.data.loader.dataset import Dataset
from reelworks.data.loader.identity import Identity, Once, Segment, carry_over, former_places, identify
from reelworks.data.loader.position import Counts, DataPosition
from reelworks.data.run import records
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.records import Key, Record, RecordError
from reelworks.data.schedule.cursor import Aliases, Cursor, Excluded, StageStart, check_same
from reelworks.data.schedule.plan import EpochPlan, PlanSpec


class Resumed(NamedTuple):
    """A restored position, and one line for each difference of the data since the checkpoint."""

    position: DataPosition
    changes: list[str]


def resume(
    data: Dataset,
    spec: PlanSpec,
    run: RunFolder,
    cursor: Cursor,
    excluded: Excluded,
    aliases: Aliases,
    once: Once = lambda work: work(),
) -> Resumed:
    """Return a checkpoint's position, even if the data changed since.

    If catalog and spec are unchanged, the plan is computed again and must be equal. Otherwise the live clips that
    are not consumed yet are planned as a new segment of the epoch. What many ranks would read alike of earlier epochs is
    read by `once`, which returns the result of a function that one of them calls.

    Raises:
        UserError: The record of the clips that were consumed is lost.
    """
    counts = Counts(cursor.planned, cursor.trained, cursor.failed, cursor.skipped, cursor.repeated)
    same = (cursor.catalog, cursor.spec) == (data.digest, spec.digest())
    identity: Identity | None = None
    if not same:
        first = _begun(data, spec, cursor, cursor.epoch) if _is_unbegun(cursor) else None
        if first is not None and first.position.plan.digest() == cursor.plan:
            # And not by the record, which another rank may have written meanwhile.
            return first._replace(position=replace(first.position, aliases=aliases))
        try:
            record, former, identity = _identify(data, run, cursor, aliases, once)
        except UserError:
            if first is not None:  # a record is written when the first step is requested
                return first
            raise
        if (changed := _other_uses(data, record, identity, cursor)) is not None:
            begun = without_record(data, spec, cursor)
            if begun is None:
                raise changed
            lines = identity.lines(data.spec.data.renamed_clips, begins=True) + _other_sides(data, former, identity)
            return Resumed(replace(begun.position, aliases=identity.aliases), [*lines, *begun.changes])
        consumed = zip(record.before(cursor.plan_step), excluded.places(), strict=True)
        ordinal, copy = (np.concatenate(both) for both in consumed)
        excluded = carry_over(identity, _segment(run, record), ordinal, copy, excluded)
        aliases = identity.aliases
    segment = cursor.segment + (not same)
    plan = data.plan(spec, cursor.epoch, data_restarts=cursor.data_restarts, segment=segment, excluded=excluded)
    done = counts.trained + counts.failed + counts.skipped
    if identity is None:
        check_same(cursor, plan)
        _require_counts(cursor, done, left=plan.planned - int(plan.planned_before[cursor.plan_step]))
    else:
        _require_counts(cursor, done, left=max(counts.planned - done, 0))
        counts = replace(counts, planned=done + plan.planned)
    plan_step = cursor.plan_step if same else 0
    key = cursor.data_restarts, cursor.epoch, segment
    resumed = DataPosition(
        spec,
        plan,
        excluded,
        counts,
        *key,
        plan_step,
        cursor.global_step,
        aliases,
        stage=cursor.stage,
        clips_before=cursor.clips_before,
    )
    changes = [] if identity is None else _difference(data, spec, cursor, done, plan, former, identity)
    return Resumed(resumed, changes)


def _require_counts(cursor: Cursor, done: int, *, left: int) -> None:
    """Refuse a position whose clips are not those that are done and those that are left."""
    if done + left != cursor.planned:
        raise UserError(
            f"it counts {done:,} of {cursor.planned:,} clips of its epoch as done, and its plan leaves {left:,}",
            code="counts-contradict-plan",
            field="resume",
            value=f"epoch {cursor.epoch}, plan step {cursor.plan_step}",
            remedy="go on from what was saved, as it was; this one was damaged or edited",
        )


def _other_uses(data: Dataset, record: Record, identity: Identity, cursor: Cursor) -> UserError | None:
    """Return an error if a dataset has other resolutions or lengths than in a segment, by which its uses are numbered."""
    before, now = record.about.uses, clip_uses.of_datasets(data.spec.datasets)
    had, names = record.about.datasets, [dataset.dataset_name for dataset in data.spec.datasets]
    renamed = identity.renamed.keys() if data.spec.data.renamed_clips == "same" else set()
    # A clip that was moved from one dataset to another has the uses of its number there.
    same = {(was, name) for was, name in renamed if was not in names and name not in had}
    for name, present in sorted(same | {(name, name) for name in names if name in had}):
        was, has = before.get(name, [[], []]), now.get(present, [[], []])
        if was != has:
            key, index = ("resolutions", 0) if was[0] != has[0] else ("lengths", 1)
            return UserError(
                f"for dataset {present} they were {was[index] or 'not set'} when this epoch began, and its clips count for these",
                code="uses-changed",
                field=f"dataset.{key}",
                value=has[index] or None,
                remedy="restore them until the epoch has ended, or "
                + ("add a stage with them" if cursor.stage.name else "restart the data with --restart-data"),
            )
    return None


def without_record(data: Dataset, spec: PlanSpec, cursor: Cursor) -> Resumed | None:
    """Return the position for changed data if no clip that was trained has to be recognised, else None.

    That holds at the first step of an epoch, and at its end, where the next epoch begins.
    """
    if _is_unbegun(cursor):
        return _begun(data, spec, cursor, cursor.epoch)
    if cursor.trained + cursor.failed + cursor.skipped == cursor.planned:
        return _begun(data, spec, cursor, cursor.epoch + 1)
    return None


def _is_unbegun(cursor: Cursor) -> bool:
    """Return whether no clip of the cursor's epoch is consumed."""
    return cursor.plan_step == cursor.segment == 0


def _begun(data: Dataset, spec: PlanSpec, cursor: Cursor, epoch: int) -> Resumed:
    start = position.start_of(data, spec, epoch=epoch, data_restarts=cursor.data_restarts)
    begun = replace(start, global_step=cursor.global_step, stage=cursor.stage, clips_before=cursor.clips)
    return Resumed(begun, [f"the data or the settings changed before the first step of epoch {epoch}, which has them"])


def start_again(
    data: Dataset,
    spec: PlanSpec,
    run: RunFolder,
    cursor: Cursor,
    aliases: Aliases,
    stage: StageStart,
    once: Once = lambda work: work(),
) -> Resumed:
    """Return the first position of a stage, which a restart of the data begins again; the step count continues.

    Only renamed datasets and clips that change sides with them are listed as changes.
    """
    first, _ = position.next_epoch(data, spec, None, data_restarts=cursor.data_restarts + 1, first=stage.epoch)
    changes: list[str] = []
    if cursor.catalog != data.digest:
        try:
            _, former, identity = _identify(data, run, cursor, aliases, once)
        except UserError:  # a restart does not need the clips that were trained before
            aliases = Aliases()
        else:
            aliases, changes = identity.aliases, _other_sides(data, former, identity)
            if not stage.name:  # a stage has other datasets on purpose
                changes = identity.lines(data.spec.data.renamed_clips, begins=True) + changes
    begun = replace(first, global_step=cursor.global_step, aliases=aliases, stage=stage, clips_before=cursor.clips)
    return Resumed(begun.with_epochs_begun(), changes)


def _identify(
    data: Dataset, run: RunFolder, cursor: Cursor, aliases: Aliases, once: Once
) -> tuple[Record, Segment, Identity]:
    """Recognise the clips that the epoch had, by the records of its segments; returns its latest one, too."""
    key = cursor.data_restarts, cursor.epoch, cursor.segment
    try:
        record = records.read(run, key, cursor.plan)
        segments = [_segment(run, record, aliases)]
    except RecordError as missing:
        raise UserError(
            f"the data changed since the checkpoint, and the record of the clips trained before is lost: {missing}",
            code="record-missing",
            field="resume",
            value=str(records.path(run, key)),
            remedy="restore that folder from a backup, or undo the changes"
            + ("" if cursor.stage.name else "; or restart the data with --restart-data"),
        ) from None
    for number in range(cursor.segment - 1, -1, -1):
        # The cursor has the consumed clips of one that is lost; only clips that are gone since then are not recognised.
        with suppress(RecordError):
            segments.append(_segment(run, records.read(run, (*key[:2], number))))
    identity = identify(data.rows, data.catalog, segments, data.spec.data.renamed_clips, _older(run, key, data), once)
    return record, segments[0], identity


def _older(run: RunFolder, key: Key, data: Dataset) -> Iterator[Segment]:
    """Yield what the run saw besides an epoch up to a segment, latest first, as far as it is recorded.

    A record is read only if it may tell a clip that has no live row now, and that none of the yielded ones had.

    That is earlier epochs, and what was begun after the checkpoint: of an epoch that a restart of the data leaves, the
    account goes on to tell the clips of its last segment, of which no step may be left.
    """
    seen: set[tuple[str, str | None]] = set()
    read: dict[tuple[str | None, ...], Catalog] = {}
    for each in [k for k in reversed(records.keys(run)) if k[:2] != key[:2] or k[2] > key[2]]:
        with suppress(RecordError, UserError):  # only clips that are gone since then are not recognised
            about = records.read_about(run, each)
            clips = about.catalog_digest, about.files.get(records.ALIASES)
            catalog = Catalog.open(run.coverage_folder / about.catalog, about.catalog_version)
            of = clips[1], *about.datasets  # by which rows have the same keys, and are the run's
            if clips in seen or _are_live(catalog, data) or (of in read and _kept_all(catalog, read[of])):
                continue
            yield _segment(run, records.read(run, each))
            seen.add(clips)
            read[of] = catalog


def _are_live(catalog: Catalog, data: Dataset) -> bool:
    """Return whether all rows that were live in a catalog are live rows of the data, by their numbers."""
    if not catalog.is_prefix_of(data.catalog):
        return False
    rows, retired = sum(part.rows for part in catalog.parts), sum(part.retired for part in catalog.parts)
    return int(np.searchsorted(data.rows.ordinal, rows)) == rows - retired


def _kept_all(catalog: Catalog, later: Catalog) -> bool:
    """Return whether a catalog grew to a later one without losing a row."""
    return catalog.is_prefix_of(later) and not any(part.retired for part in later.parts[catalog.version :])


def _segment(run: RunFolder, record: Record, aliases: Aliases | None = None) -> Segment:
    total = 1 + max(int(record.ordinal.max(initial=-1)), int(record.other_ordinal.max(initial=-1)))
    held = np.flatnonzero(blocks.mask(record.ordinal, total) | blocks.mask(record.other_ordinal, total))
    catalog = segment_record.recorded_catalog(run, record.about)
    return Segment(catalog, held, aliases or Aliases(record.alias_ordinal, record.alias_key))


def _difference(
    data: Dataset, spec: PlanSpec, cursor: Cursor, done: int, rest: EpochPlan, former: Segment, identity: Identity
) -> list[str]:
    lines = []
    if cursor.catalog != data.digest:
        changes = f"{units.plural(identity.added, 'clip')} added, {identity.removed} removed, {identity.edited} changed"
        if not (identity.added or identity.removed or identity.edited or identity.renamed):
            changes = "the same clips; their place, their order, their measures or their companions changed"
        lines = [f"catalog: {changes}", *identity.lines(data.spec.data.renamed_clips)]
        lines += _other_sides(data, former, identity)
    if cursor.spec != spec.digest():
        lines.append(
            "buckets, batch sizes, costs, dataset settings, micro-batches per step or the seed are not the checkpoint's"
        )
    clips, steps = units.plural(done, "clip"), units.plural(rest.num_steps, "new step")
    lines.append(f"epoch {cursor.epoch}: {clips} done, {rest.planned} left in {steps}")
    return lines


def _other_sides(data: Dataset, former: Segment, identity: Identity) -> list[str]:
    """Return a line if clips are held out now and were trained, or the other way round; settings count as they are now."""
    spec = data.spec
    if not spec.split:
        return []
    place = former_places(identity, former)
    still = np.flatnonzero(place >= 0)
    rows = former.catalog.rows_at(former.ordinal)
    before = held_out.held_out(rows, spec, duplicates.numbering_lists(former.catalog))[place[still]]
    now = data.is_held_out[still]
    added, left = int((now & ~before).sum()), int((before & ~now).sum())
    if not added and not left:
        return []
    return [
        f"clips are held out by their content: {units.plural(added, 'clip')} that may have been trained "
        f"{'is' if added == 1 else 'are'} held out now, and {left} the other way round, as their content, their near-duplicates, "
        "their folders, or names of files that were not read, changed; the losses of validation cannot be compared"
    ]
