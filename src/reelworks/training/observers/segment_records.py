"""Write the records of a run's segments during training, on the main rank, at the start and end of each segment."""

from __future__ import annotations

from dataclasses import dataclass, field

from reelworks.core import units
from reelworks.core.log import logger
from reelworks.data.loader import plan_cache, segment_record
from reelworks.data.loader.position import DataPosition
from reelworks.data.run import history, records
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.records import Key, Outcome, RecordedFailure, RecordError
from reelworks.training.coverage import clip_history
from reelworks.training.recipe.dataset import RecipeData


@dataclass
class RecordKeeper:
    """Write the records of segments; a failing disk is logged, and training continues."""

    run: RunFolder
    data: RecipeData
    recipe_file: str  # of this start, in `recipes/`
    _has_begun: bool = False
    _skipped: list[int] = field(default_factory=list)
    _failures: list[RecordedFailure] = field(default_factory=list)

    def begin(self, position: DataPosition, in_use: set[tuple[int, int]]) -> None:
        """Record the segment that training starts or resumes; a resume may need the records of the epochs `in_use`."""
        is_first = not self._has_begun
        self._resume_counts(position)
        try:
            self._close_former(position)
            if not segment_record.is_recorded(self.run, self.data, position):
                segment_record.begin(self.run, self.data, position, self.recipe_file)
            if position.at_end and records.read_outcome(self.run, position.key) is None:
                self.end(position)
            current = position.data_restarts, position.epoch
            plan_cache.drop(self.run, current)
            if self._prune(in_use | {current}) or is_first:  # a start may have dropped records, or replaced some
                records.drop_catalogs(self.run)
        except (OSError, RecordError) as error:
            logger.warning(
                f"epoch {position.epoch}, segment {position.segment} has no record ({error}): coverage cannot "
                "list its clips, and the data must not change before its end"
            )

    def _resume_counts(self, position: DataPosition) -> None:
        """Read failures and skips of the segment's trained steps from the events; drop records of later segments."""
        if not self._has_begun:
            self._has_begun = True
            for key in records.keys(self.run):
                if key > position.key:  # the run resumed from an earlier checkpoint
                    records.drop(self.run, key)
        outcome = self._outcome(position.key, position.plan_step) if position.plan_step else Outcome(steps=0)
        self._skipped, self._failures = outcome.skipped, outcome.failures

    def _close_former(self, position: DataPosition) -> None:
        """Record the outcome of the epoch's previous segment, if a killed start could not."""
        if not position.segment:
            return
        former = position.data_restarts, position.epoch, position.segment - 1
        if records.path(self.run, former).is_dir() and records.read_outcome(self.run, former) is None:
            num_steps = position.global_step - position.plan_step - records.read_about(self.run, former).first_step
            records.write_outcome(self.run, former, self._outcome(former, num_steps))

    def _outcome(self, key: Key, num_steps: int) -> Outcome:
        """Return the outcome of a segment's first steps, from the events."""
        for epoch in history.epochs(self.run, key[:2]):
            return epoch.outcome(key[2], num_steps)
        return Outcome(steps=num_steps)

    def _prune(self, in_use: set[tuple[int, int]]) -> bool:
        """Remove records over the limit; return whether there were any."""
        limit = self.data.recipe.coverage.max_disk_bytes
        if limit is None:
            return False
        removed = [*records.prune(self.run, limit, in_use, lambda key: clip_history.totals(self.run, *key))]
        for data_restarts, epoch in removed:
            name = history.epoch_name(epoch, data_restarts, "")
            logger.info(
                f"the record of epoch {name} is removed to stay within coverage.max_disk = {units.size(limit)}; "
                "its totals are kept, the outcome of each of its clips is lost"
            )
        return bool(removed)

    def step(self, plan_step: int, applied: bool, failures: list[RecordedFailure]) -> None:
        """Count a finished step."""
        if not applied:
            self._skipped.append(plan_step)
        self._failures += failures

    def end(self, position: DataPosition) -> None:
        """Record the number of the segment's trained steps, with skipped ones and failures."""
        outcome = Outcome(steps=position.plan_step, skipped=self._skipped, failures=self._failures)
        try:
            records.write_outcome(self.run, position.key, outcome)
        except OSError as error:
            logger.warning(f"the end of epoch {position.epoch} is not recorded ({error})")
