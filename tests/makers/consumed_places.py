"""The places of a plan whose clips are consumed before a step, found apart from the records of a run."""

from __future__ import annotations

import numpy as np

from reelworks.core.arrays import Mask
from reelworks.data.schedule.plan import EpochPlan


def places_before(plan: EpochPlan, plan_step: int) -> Mask:
    """Return the mask of the places in the steps before `plan_step` that consume their clip."""
    done = np.zeros(len(plan.offsets) - 1, dtype=np.bool_)
    before = plan.steps[:plan_step].ravel()
    done[before[before >= 0]] = True
    return np.repeat(done, np.diff(plan.offsets)) & plan.is_first_use
