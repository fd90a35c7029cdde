"""Limits on columns of numbers: what moving one takes in and leaves out, and the clips next to it on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from reelworks.annexes.page import distributions
from reelworks.annexes.page.clips import EPOCH, ClipView
from reelworks.core.arrays import F64, I32, I64, Mask
from reelworks.core.results import Json
from reelworks.data.buckets import assign
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.filter_expression import ColumnRange, divide, with_ranges
from reelworks.data.catalog.query import filters
from reelworks.reports import columns

_FITTING = (Reason.NONE, Reason.NOT_DRAWN, Reason.HELD_OUT, Reason.DUPLICATE, Reason.DUPLICATE_TURN)
_NEAREST = 6  # clips that are shown on each side of a limit


@dataclass(frozen=True)
class Side:
    """Rows next to a limit, the nearest first: those that it takes and those that it leaves out."""

    inside: I32
    outside: I32


@dataclass(frozen=True)
class LimitsAnswer:
    """Effect of limits on the clips of a dataset.

    Attributes:
        clips: Clips that the limits are set on.
        inside: Those that pass all limits.
        left_out: Those that do not, by the column whose limits they fail; a clip may fail several.
        former: The filter as the recipe has it.
        filter: The filter with the limits in place of the former ones.
        least, most: Clips next to the two limits of the column that was moved; None for a limit that is not set.
    """

    clips: int
    inside: int
    left_out: dict[str, int]
    former: str | None
    filter: str | None
    least: Side | None
    most: Side | None


def filter_of(clips: ClipView, dataset: str) -> str | None:
    """Return the filter of a dataset."""
    config = clips.data.dataset_by_name.get(dataset)
    return None if config is None else config.filter


def base(clips: ClipView, dataset: str) -> I32:
    """Return the clips of a dataset that are trained, or are left out by limits in its filter alone.

    Without a recipe these are all readable clips.
    """
    if dataset not in clips.limited:
        rows = clips.data.rows
        mine = rows.of_datasets([dataset])
        fits = np.isin(clips.reason, _FITTING)
        _, rest = divide(filter_of(clips, dataset), columns.limitable(rows))
        filtered = np.flatnonzero(mine & (clips.reason == Reason.FILTERED))
        if rest is not None:
            filtered = filtered[filters.keeps(rows.take(filtered), rest)]
        fits[_fitting(clips, filtered)] = True
        clips.limited[dataset] = np.flatnonzero(mine & fits).astype(np.int32)
    return clips.limited[dataset]


def _fitting(clips: ClipView, filtered: I64) -> I64:
    """Return those of some filtered rows that would fit a bucket."""
    if not len(filtered):
        return filtered
    every, row = clips.data.clips()
    at = np.flatnonzero(np.isin(row, filtered))
    passing = replace(every.take(at), excluded=np.zeros(len(at), dtype=np.int8))
    result = assign.assign(passing, clips.data.table, seed=clips.data.spec.seed, epoch=EPOCH)
    return row[at[np.isin(result.reason, _FITTING)]]


def list_columns(clips: ClipView, dataset: str) -> list[Json]:
    """Return the columns that a limit can be set on, each with its limits now and the bars of its values."""
    rows, among = clips.data.rows, base(clips, dataset)
    ranges, _ = divide(filter_of(clips, dataset))
    found = []
    for name in columns.limitable(rows):
        values = columns.values_of(rows, name)[among]
        there = values[np.isfinite(values)]
        if len(there):
            label, unit, _ = columns.heading(name)
            now = ranges.get(name, ColumnRange())
            about = {"name": name, "label": label, "unit": unit, "missing": len(values) - len(there)}
            ends = {"low": float(there.min()), "high": float(there.max()), "least": now.least, "most": now.most}
            found.append(about | ends | distributions.bars_of(there))
    return found


def ask(clips: ClipView, dataset: str, ranges: Mapping[str, ColumnRange], moved: str | None) -> LimitsAnswer:
    """Return what limits would do to a dataset's clips, and the clips next to those of the column that was moved."""
    rows, among, former = clips.data.rows, base(clips, dataset), filter_of(clips, dataset)
    values = {name: columns.values_of(rows, name)[among] for name in ranges if name in columns.limitable(rows)}
    now, _ = divide(former)
    given = {name: ranges[name].ends_of(now.get(name, ColumnRange())) for name in values}
    passes = {name: _within(values[name], given[name]) for name in values}
    inside = np.logical_and.reduce([np.ones(len(among), dtype=np.bool_), *passes.values()])
    least = most = None
    if moved in values:
        others = [passes[name] for name in passes if name != moved]
        rest = np.logical_and.reduce([np.ones(len(among), dtype=np.bool_), *others])
        ends = given[moved]
        least = _side(among, values[moved], ends.least, ends.above, inside, rest, sign=1)
        most = _side(among, values[moved], ends.most, ends.below, inside, rest, sign=-1)
    return LimitsAnswer(
        clips=len(among),
        inside=int(inside.sum()),
        left_out={name: int((~mask).sum()) for name, mask in passes.items()},
        former=former,
        filter=with_ranges(former, {name: ranges[name] for name in values}),
        least=least,
        most=most,
    )


def _within(values: F64, limits: ColumnRange) -> Mask:
    passes = np.ones(len(values), np.bool_)  # those without a value fail each comparison
    if limits.least is not None:
        passes &= values > limits.least if limits.above else values >= limits.least
    if limits.most is not None:
        passes &= values < limits.most if limits.below else values <= limits.most
    return passes


def _side(
    among: I32, values: F64, limit: float | None, is_open: bool, inside: Mask, rest: Mask, *, sign: int
) -> Side | None:
    """Return the clips next to a limit, which is outside if it is open; `sign` is 1 for a lower one and -1 for an upper one."""
    if limit is None:
        return None
    distance = sign * (values - limit)
    outside = rest & (distance <= 0 if is_open else distance < 0)
    return Side(_nearest(among, distance, inside), _nearest(among, -distance, outside))


def _nearest(among: I32, distance: F64, chosen: Mask) -> I32:
    at = np.flatnonzero(chosen)
    if len(at) > _NEAREST:
        at = at[np.argpartition(distance[at], _NEAREST)[:_NEAREST]]
    return among[at[np.argsort(distance[at], kind="stable")]]
