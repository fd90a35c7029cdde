"""Plans that were made, kept in memory and for all processes of a machine in the run folder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from reelworks.run import plans
from reelworks.run.folder import RunFolder
from reelworks.schedule.plan import EpochPlan

_KEPT = 3


@dataclass
class KeptPlans:
    """The last few plans, since reading ahead and training share them."""

    _plans: OrderedDict[str, EpochPlan] = field(default_factory=OrderedDict)

    def get(
        self, run: RunFolder | None, place: tuple[int, int, int], made_of: str, make: Callable[[], EpochPlan]
    ) -> EpochPlan:
        """A plan that was made before, or a new one.

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
    run: RunFolder, place: tuple[int, int, int], made_of: str, make: Callable[[], EpochPlan]
) -> EpochPlan:
    try:
        return EpochPlan(**plans.shared(run, *place, made_of, lambda: make().arrays()))
    except OSError:  # a full disk ends no training; where plans are kept it is told
        return make()
