"""Position of a run in its data: the start of an epoch and the advance to the next."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from reelworks.core import toml, units
from reelworks.core.errors import UserError
from reelworks.data.buckets.assign import Reason
from reelworks.data.loader import left_out
from reelworks.data.loader.data_spec import DataSpec
from reelworks.data.loader.dataset import Dataset
from reelworks.data.schedule.cursor import RUN_START, Aliases, Cursor, Excluded, StageStart
from reelworks.data.schedule.plan import EpochPlan, PlanSpec

_LEFT_OUT = toml.beside(__file__, "left_out.toml")
_EMPTY_EPOCHS = 1000  # so many consecutive empty epochs are not due to chance


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
        return Counts(
            self.planned, self.trained + trained, self.failed + failed, self.skipped + skipped, self.repeated + repeated
        )


@dataclass(frozen=True)
class DataPosition:
    """The step of a plan to train next, with the plan."""

    spec: PlanSpec
    plan: EpochPlan
    excluded: Excluded
    counts: Counts
    data_restarts: int
    epoch: int
    segment: int = 0
    plan_step: int = 0
    global_step: int = 0
    aliases: Aliases = field(default_factory=Aliases)
    stage: StageStart = RUN_START
    clips_before: int = 0  # clips trained in the run before the epoch

    @property
    def clips(self) -> int:
        """Clips that the run has trained, each use as one."""
        return self.clips_before + self.counts.trained

    @property
    def key(self) -> tuple[int, int, int]:
        """Generation, epoch and segment."""
        return self.data_restarts, self.epoch, self.segment

    @property
    def at_end(self) -> bool:
        """True when all steps of the epoch are done."""
        return self.plan_step >= self.plan.num_steps

    def with_epochs_begun(self) -> DataPosition:
        """Return a position in whose stage it is kept where the epochs began, and how many steps each of them has."""
        done = (self.epoch - self.stage.epoch) * self.plan.num_steps + self.plan_step
        kept = replace(self.stage, epochs_step=self.global_step - done, epoch_steps=self.plan.num_steps)
        return replace(self, stage=kept)

    def to_cursor(self, data: Dataset) -> Cursor:
        """Return the cursor that a checkpoint stores; the excluded clips are stored separately."""
        return Cursor(
            catalog=data.digest,
            catalog_version=data.catalog.version,
            spec=self.spec.digest(),
            plan=self.plan.digest(),
            next_step=self.plan.step_digest(self.plan_step),
            data_restarts=self.data_restarts,
            epoch=self.epoch,
            segment=self.segment,
            plan_step=self.plan_step,
            global_step=self.global_step,
            **asdict(self.counts),
            clips_before=self.clips_before,
            **{f"stage_{name}": value for name, value in asdict(self.stage).items()},
        )


def start_of(data: Dataset, spec: PlanSpec, *, epoch: int, data_restarts: int = 0) -> DataPosition:
    """Return the position at the start of an epoch, which may have no step, of a run that trained nothing before."""
    plan = data.plan(spec, epoch, data_restarts=data_restarts)
    return DataPosition(spec, plan, Excluded(), Counts(planned=plan.planned), data_restarts, epoch)


def begin_epoch(data: Dataset, spec: PlanSpec, *, epoch: int, data_restarts: int = 0) -> DataPosition:
    """Return the position at the first step of an epoch, which must have one."""
    begun = start_of(data, spec, epoch=epoch, data_restarts=data_restarts)
    if begun.at_end:
        raise no_steps(data, epoch)
    return begun


def next_epoch(
    data: Dataset, spec: PlanSpec, position: DataPosition | None, *, data_restarts: int = 0, first: int = 0
) -> tuple[DataPosition, list[int]]:
    """Return the position at the first step of the next epoch, or of the epoch `first` if `position` is None.

    With `keep_prob` below 1 a small dataset may draw no clip at all in an epoch; such epochs are skipped, and listed
    beside the position.
    """
    if position is not None:
        first, data_restarts = position.epoch + 1, position.data_restarts
    for epoch in range(first, first + _EMPTY_EPOCHS):
        has_steps = data.plan(spec, epoch, data_restarts=data_restarts).num_steps > 0
        if has_steps or Reason.NOT_DRAWN not in data.assignment(epoch)[0].reason:
            break
    begun = begin_epoch(data, spec, epoch=epoch, data_restarts=data_restarts)
    if position is not None:
        begun = replace(
            begun,
            global_step=position.global_step,
            aliases=position.aliases,
            stage=position.stage,
            clips_before=position.clips,
        )
    return begun, list(range(first, epoch))


def no_steps(data: Dataset, epoch: int = 0) -> UserError:
    """Return the error for an epoch without a step, with the clips of every entry and a remedy."""
    result, row = data.assignment(epoch)
    clips = {left.reason: len(left.row) for left in left_out.by_reason(result, row)}
    total = len(np.unique(row))
    for kind, count in clips.items():
        if 2 * count > total and (told := _LEFT_OUT.get(kind.label)):  # one setting leaves out most of the clips
            by_file = kind == Reason.HELD_OUT and data.spec.group == "folder"
            return UserError(
                f"{count} of {total} clips {told['problem']} (reason {kind.label}), so an epoch would have no step",
                code="empty-epoch",
                field=told["key"],
                value=_value_of(told["key"], data.spec),
                remedy=told["remedy"] + (', or set validation.group = "file"' if by_file else ""),
            )
    lines = []
    for index, entry in enumerate(data.table.entries):
        inside = np.isin(result.bucket, data.table.of_entry(index)) & (result.reason == Reason.NONE)
        lines.append(f"{entry}: {units.plural(len(np.unique(row[inside])), 'clip')}")
    reasons = [f"{reason.label}: {n}" for reason, n in clips.items()]
    fits = (result.reason == Reason.NOT_DRAWN).any()
    may_draw = fits or not all(entry.is_used for entry in data.table.entries)
    problem = "no clip that fits a bucket is drawn" if fits else "no clip fits any bucket"
    return UserError(
        f"{problem}, so an epoch would have no step ({'; '.join(lines)}; {', '.join(reasons)})",
        code="empty-epoch",
        field="bucket",
        remedy=("raise bucket.keep_prob or dataset.repeats, " if may_draw else "")
        + "lower bucket.num_frames or bucket.resolution to what the clips have, or set buckets.upscale = true",
    )


def _value_of(key: str, spec: DataSpec) -> Any:
    """Return the value of a key of `left_out.toml`."""
    match key.split("."):
        case ["dataset"]:
            return [dataset.companions for dataset in spec.datasets]
        case ["dataset", name]:
            return [getattr(dataset, name) for dataset in spec.datasets]
        case ["data", name]:
            return getattr(spec.data, name)
        case ["sound", _]:
            return "leave_out"  # which alone leaves clips without sound out
        case [*_, name]:
            return getattr(spec, name)
