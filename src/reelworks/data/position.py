"""Position of a run in its data: the start of an epoch and the advance to the next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from reelworks.buckets.assign import Reason
from reelworks.data import empty_epoch
from reelworks.data.dataset import Dataset
from reelworks.schedule.cursor import Aliases, Cursor, Excluded
from reelworks.schedule.plan import EpochPlan, PlanSpec

_EMPTY_EPOCHS = 1000  # so many empty epochs in a row are not due to chance


@dataclass(frozen=True)
class Counts:
    """Clips of an epoch so far, by what happened to them."""

    planned: int = 0
    trained: int = 0
    failed: int = 0
    skipped: int = 0
    repeated: int = 0

    def add(self, trained: int, failed: int, skipped: int, repeated: int) -> Counts:
        """Return the counts after one more step."""
        return replace(
            self,
            trained=self.trained + trained,
            failed=self.failed + failed,
            skipped=self.skipped + skipped,
            repeated=self.repeated + repeated,
        )


@dataclass(frozen=True)
class DataPosition:
    """The row (optimizer step) to train next, with its plan."""

    spec: PlanSpec
    plan: EpochPlan
    excluded: Excluded
    counts: Counts
    generation: int
    epoch: int
    segment: int
    row: int
    global_step: int
    aliases: Aliases = field(default_factory=Aliases)

    @property
    def key(self) -> tuple[int, int, int]:
        """Generation, epoch and segment."""
        return self.generation, self.epoch, self.segment

    @property
    def at_end(self) -> bool:
        """True when all rows of the epoch are done."""
        return self.row >= self.plan.steps

    def to_cursor(self, data: Dataset) -> Cursor:
        """Return the cursor that a checkpoint stores; the excluded clips are stored separately."""
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
    data: Dataset,
    spec: PlanSpec,
    *,
    epoch: int,
    global_step: int = 0,
    generation: int = 0,
    aliases: Aliases | None = None,
) -> DataPosition:
    """Return the position at the first row of an epoch.

    Raises:
        UserError: The epoch has no step; the error lists the clips of every bucket entry, with a remedy.
    """
    epoch_plan = data.plan(spec, epoch, generation=generation)
    if epoch_plan.steps == 0:
        raise empty_epoch.no_steps(data, epoch)
    counts = Counts(planned=epoch_plan.planned)
    return DataPosition(
        spec,
        epoch_plan,
        Excluded.none(),
        counts,
        generation,
        epoch,
        segment=0,
        row=0,
        global_step=global_step,
        aliases=aliases or Aliases(),
    )


def next_epoch(
    data: Dataset, spec: PlanSpec, position: DataPosition | None, *, generation: int = 0
) -> tuple[DataPosition, list[int]]:
    """Return the position at the first row of the next epoch, or of the first epoch if `position` is None.

    With `keep_prob` below 1 a small dataset may draw no clip at all in an epoch; such epochs are skipped.

    Returns:
        The position, and the skipped epochs.

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
        aliases=None if position is None else position.aliases,
    )
    return begun, list(range(first, epoch))


def _may_be_drawn(data: Dataset, epoch: int) -> bool:
    result, _ = data.assignment(epoch)
    return bool((result.reason == Reason.NOT_DRAWN).any())
