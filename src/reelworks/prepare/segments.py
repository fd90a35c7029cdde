"""The plans that an epoch went by, and which step took each of their clips."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from reelworks.prepare.former import FormerData
from reelworks.run import plans
from reelworks.run.coverage import Epoch, Step
from reelworks.run.folder import RunFolder
from reelworks.schedule import cursor as cursors
from reelworks.schedule import plan as planning
from reelworks.schedule.plan import EpochPlan

_VERSIONS_TRIED = 16


@dataclass(frozen=True)
class Segment:
    """A stretch of an epoch under one plan; arrays have one element for each clip that it planned.

    Attributes:
        number: From 0.
        uid, copy: The clip.
        step: The step that took it, 0 where none that holds did.
    """

    number: int
    uid: NDArray[np.uint64]
    copy: NDArray[np.int64]
    step: NDArray[np.int64]


def segments(data: FormerData, epoch: Epoch) -> tuple[list[Segment], bool]:
    """Read the plans of an epoch's segments, or make them again where their files are gone.

    Args:
        data: The run's data.
        epoch: What the events say of the epoch.

    Returns:
        The segments that trained something and the one under way; and False if some of them are gone for
        good, so that the others do not tell the whole epoch.
    """
    return _found(data, epoch, sorted(n for n in epoch.plans if epoch.steps.get(n) or n == epoch.segment))


def plan_of(data: FormerData, epoch: Epoch, number: int) -> tuple[EpochPlan, bool] | None:
    """Read the plan of one segment, or make it again.

    Args:
        data: The run's data.
        epoch: What the events say of the epoch.
        number: The segment's, from 0.

    Returns:
        The plan, and whether it was read; None if it is gone for good.
    """
    stored = _read(data.run, epoch, number)
    if stored is not None:
        return stored, True
    former, whole = _found(data, epoch, sorted(n for n in epoch.steps if n < number))
    again = _made_again(data, epoch, number, former) if whole else None
    return None if again is None else (again, False)


def _found(data: FormerData, epoch: Epoch, numbers: list[int]) -> tuple[list[Segment], bool]:
    found: list[Segment] = []
    whole = True
    for number in numbers:
        went_by = _read(data.run, epoch, number)
        if went_by is None and whole:  # what is left to plan depends on all that was trained before
            went_by = _made_again(data, epoch, number, found)
        if went_by is None:
            whole = False
        else:
            found.append(_segment(number, went_by, epoch.steps.get(number, [])))
    return found, whole


def _segment(number: int, plan: EpochPlan, steps: list[Step]) -> Segment:
    taken_by = np.zeros(len(plan.offsets), dtype=np.int64)  # the last one is for empty columns, -1
    for step in steps:
        taken_by[plan.rows[step.row]] = step.step
    by_place = np.repeat(taken_by[:-1], np.diff(plan.offsets))
    first = plan.first
    return Segment(number, plan.uid[first], plan.copy[first].astype(np.int64), by_place[first])


def _read(run: RunFolder, epoch: Epoch, number: int) -> EpochPlan | None:
    """Read a segment's plan; None if it is not the one that the segment went by."""
    arrays = plans.read(run, epoch.generation, epoch.epoch, number)
    if arrays is None or arrays.keys() != {f.name for f in fields(EpochPlan)}:
        return None
    stored = EpochPlan(**arrays)
    return stored if stored.digest() == epoch.plans[number] else None


def _made_again(data: FormerData, epoch: Epoch, number: int, former: list[Segment]) -> EpochPlan | None:
    """Plan a segment again, by its recipe, on the catalog's version of then or another that gives the plan it went by.

    Versions that differ in captions alone give equal plans, so the version that the events tell comes first.
    """
    recipe = epoch.recipes[number]
    if (now := data.find(recipe)) is None:
        return None
    newest = now.catalog.version
    then_version = epoch.catalog_versions.get(number, newest)
    versions = [then_version, *range(newest, max(newest - _VERSIONS_TRIED, 0), -1)]
    uid = np.concatenate([s.uid[s.step > 0] for s in former] or [np.zeros(0, np.uint64)])
    copy = np.concatenate([s.copy[s.step > 0] for s in former] or [np.zeros(0, np.int64)])
    for version in dict.fromkeys(v for v in versions if v <= newest):  # a catalog made anew may have fewer
        then = data.of(recipe, None if version == newest else version)
        spec = then.spec(*epoch.step_shapes[number])
        again = planning.plan(cursors.remaining(then.entries(epoch.epoch), uid, copy), spec, epoch.epoch)
        if again.digest() == epoch.plans[number]:
            return again
    return None
