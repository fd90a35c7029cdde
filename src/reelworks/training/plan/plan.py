"""Plan a dataset without reading a file: steps, balance, and rejected clips by reason."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reelworks.core import arguments
from reelworks.core.arguments import checked
from reelworks.data.buckets.assign import Reason
from reelworks.data.loader import left_out, ranks
from reelworks.data.loader.dataset import Dataset
from reelworks.data.loader.left_out import Rejection


@dataclass(frozen=True, repr=False)
class Rejected:
    """Clips that an epoch leaves out; repeats of a clip count once, and not at all if one of them is trained.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_dataset
        >>> left_out = rw.plan(sample_dataset()).rejected
        >>> len(left_out), left_out.by_reason(), left_out.paths("no_caption")
        (0, {}, [])
    """

    _dataset: Dataset
    _groups: list[Rejection]

    def by_reason(self) -> dict[str, int]:
        """Return the number of clips by reason, the most frequent first."""
        counts = {group.reason.label: len(group.row) for group in self._groups}
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @checked(reason=arguments.one_of(*(each.label for each in Reason if each)))
    def paths(self, reason: str) -> list[str]:
        """Return the clips of a reason, as dataset/path; none if no clip has it.

        Raises:
            UserError: There is no such reason.
        """
        found = [group.row for group in self._groups if group.reason.label == reason]
        return sorted(self._dataset.rows.labels(found[0])) if found else []

    def __len__(self) -> int:
        return sum(len(group.row) for group in self._groups)

    def __repr__(self) -> str:
        return f"Rejected({self.by_reason()})"


@dataclass(frozen=True)
class Plan:
    """Statistics of a planned epoch.

    Attributes:
        micro_batches: Micro-batches of all steps and ranks.
        clips: Clips that are trained, each repeat once.
        imbalance: Share of time, from 0 to 1, that ranks wait for the slowest of them under the cost model.
        padding: Share of the clips in micro-batches that only fill them up.
        buckets: Number of clips by bucket.
    """

    epoch: int
    steps: int
    micro_batches: int
    clips: int
    imbalance: float
    padding: float
    buckets: dict[str, int]
    rejected: Rejected


@checked(
    dataset=arguments.a(Dataset),
    micro_batches_per_step=arguments.optional(arguments.whole(1)),
    world_size=arguments.optional(arguments.whole(1)),
    epoch=arguments.whole(0),
)
def plan(
    dataset: Dataset, *, micro_batches_per_step: int | None = None, world_size: int | None = None, epoch: int = 0
) -> Plan:
    """Plan an epoch without reading a file, as a `Loader` with the same arguments does.

    Args:
        dataset: The dataset to plan.
        micro_batches_per_step: Micro-batches of an optimizer step, over all ranks; None for one on each rank.
        world_size: Number of ranks; None takes it from torch.distributed or the environment (WORLD_SIZE), else 1.
        epoch: Number of the epoch, from 0.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_dataset
        >>> made = rw.plan(sample_dataset(), micro_batches_per_step=2)
        >>> made.steps, made.clips, made.rejected.by_reason()
        (2, 12, {})
    """
    _, world = ranks.place_of(None if world_size is None else 0, world_size)
    spec = dataset.plan_spec(*ranks.shape_of_step(micro_batches_per_step, world))
    epoch_plan = dataset.plan(spec, epoch)
    buckets, clips = np.unique(epoch_plan.bucket[epoch_plan.is_first_use], return_counts=True)
    names = [bucket.name for bucket in dataset.table.buckets]
    left_out.warn_of_lines(dataset)
    return Plan(
        epoch=epoch,
        steps=epoch_plan.num_steps,
        micro_batches=len(epoch_plan.offsets) - 1,
        clips=int(epoch_plan.is_first_use.sum()),
        imbalance=epoch_plan.waste(spec, world),
        padding=float(1 - epoch_plan.is_first_use.mean()) if len(epoch_plan.is_first_use) else 0.0,
        buckets={names[i]: n for i, n in zip(buckets.tolist(), clips.tolist(), strict=True)},
        rejected=Rejected(dataset, left_out.by_reason(*dataset.assignment(epoch))),
    )
