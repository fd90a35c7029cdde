"""Plans that were made, kept in memory and for all processes of a machine in the run folder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.run import plans
from reelworks.run.folder import RunFolder
from reelworks.schedule.plan import EpochPlan

_KEPT = 3


@dataclass(frozen=True)
class Unplanned:
    """Live clips and copies that a plan does not hold, by ordinal.

    Attributes:
        ordinal, copy: The clip.
        reason: `Reason` of each; `NONE` where an earlier segment of the epoch consumed it.
        nearest: Entry that would ask least of it, -1 where there is none.
    """

    ordinal: NDArray[np.int64]
    copy: NDArray[np.int64]
    reason: NDArray[np.int8]
    nearest: NDArray[np.int32]

    def take(self, where: NDArray[np.int64]) -> Unplanned:
        """Those at the given places."""
        return Unplanned(self.ordinal[where], self.copy[where], self.reason[where], self.nearest[where])


@dataclass(frozen=True)
class Planned:
    """A plan, and the clips that it leaves out."""

    plan: EpochPlan
    others: Unplanned

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name, as files keep them."""
        return {
            **self.plan.arrays(),
            **{f"other_{f.name}": getattr(self.others, f.name) for f in fields(Unplanned)},
        }

    @classmethod
    def of_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Planned:
        """Take what `arrays` gave."""
        plan = EpochPlan(**{f.name: arrays[f.name] for f in fields(EpochPlan)})
        return cls(plan, Unplanned(**{f.name: arrays[f"other_{f.name}"] for f in fields(Unplanned)}))


@dataclass
class KeptPlans:
    """The last few plans, since reading ahead and training share them."""

    _plans: OrderedDict[str, Planned] = field(default_factory=OrderedDict)

    def get(
        self, run: RunFolder | None, place: tuple[int, int, int], made_of: str, make: Callable[[], Planned]
    ) -> Planned:
        """Return a plan that was made before, or a new one.

        Args:
            run: The run folder whose processes share their plans, or None.
            place: Generation, epoch and segment.
            made_of: Digest of all that the plan follows from.
            make: Makes it.
        """
        if made_of not in self._plans:
            self._plans[made_of] = make() if run is None else _shared(run, place, made_of, make)
            while len(self._plans) > _KEPT:
                self._plans.popitem(last=False)
        return self._plans[made_of]


def _shared(
    run: RunFolder, place: tuple[int, int, int], made_of: str, make: Callable[[], Planned]
) -> Planned:
    try:
        return Planned.of_arrays(plans.shared(run, *place, made_of, lambda: make().arrays()))
    except OSError:  # a full disk ends no training; the record tells that it could not be kept
        return make()
