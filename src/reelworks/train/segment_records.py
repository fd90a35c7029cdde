"""Keeps the records of a run's segments while it trains: on the main rank, at their beginning and end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reelworks.analysis import clip_history
from reelworks.core import units
from reelworks.core.log import logger
from reelworks.data import plan_cache, segment_record
from reelworks.data.position import DataPosition
from reelworks.recipe.dataset import RecipeData
from reelworks.run import history, records
from reelworks.run.folder import RunFolder
from reelworks.run.records import Failure, Key, Outcome, RecordError


@dataclass
class RecordKeeper:
    """Writes records. A disk that cannot take them is told and ends no training.

    Attributes:
        run: The run folder.
        data: The data trained on.
        recipe_file: File of this start's recipe, below `recipes/`.
    """

    run: RunFolder
    data: RecipeData
    recipe_file: str
    _begun: bool = False
    _skipped: list[int] = field(default_factory=list)
    _failures: list[Failure] = field(default_factory=list)

    def begin(self, position: DataPosition, in_use: set[tuple[int, int]]) -> None:
        """Record the segment that training begins, or goes on with.

        Args:
            position: Where it stands.
            in_use: Generation and epoch of every checkpoint, whose records a resume may need.
        """
        self._take_up(position)
        try:
            self._close_former(position)
            if not self._is_recorded(position):
                segment_record.begin(self.run, self.data, position, self.recipe_file)
            if position.at_end and records.read_outcome(self.run, position.key) is None:
                self.end(position)
            now = position.generation, position.epoch
            plan_cache.drop(self.run, now)
            self._make_room(in_use | {now})
        except (OSError, RecordError) as error:
            logger.warning(
                f"epoch {position.epoch}, segment {position.segment} has no record ({error}): coverage cannot "
                "tell its clips, and the data must not change before its end"
            )

    def _take_up(self, position: DataPosition) -> None:
        """Begin to count, from what the events tell of the steps that the segment has done."""
        self._skipped, self._failures = [], []
        if not self._begun:
            self._begun = True
            for key in records.keys(self.run):
                if key > position.key:  # the run went back behind it
                    records.drop(self.run, key)
        if position.row:
            outcome = _as_told(self.run, position.key, position.row)
            self._skipped, self._failures = outcome.skipped, outcome.failures

    def _close_former(self, position: DataPosition) -> None:
        """Record how the segment before this one of the epoch ended, where a killed start could not."""
        if not position.segment:
            return
        former = position.generation, position.epoch, position.segment - 1
        if records.path(self.run, former).is_dir() and records.read_outcome(self.run, former) is None:
            rows = position.global_step - position.row - records.read_about(self.run, former).first_step
            records.write_outcome(self.run, former, _as_told(self.run, former, rows))

    def _is_recorded(self, position: DataPosition) -> bool:
        try:
            about = records.read(self.run, position.key, position.plan.digest()).about
        except RecordError:
            return False
        return (about.catalog_digest, about.spec_digest) == (self.data.digest, position.spec.digest())

    def _make_room(self, in_use: set[tuple[int, int]]) -> None:
        limit = self.data.recipe.coverage.max_disk_bytes
        if limit is None:
            return
        for generation, epoch in records.prune(self.run, limit, in_use, self._totals):
            name = f"epoch {epoch}" + (f" of generation {generation}" if generation else "")
            logger.info(
                f"the record of {name} is removed to stay within coverage.max_disk = "
                f"{units.told_bytes(limit)}; its totals stay, what became of each clip in it cannot be told any more"
            )

    def _totals(self, epoch: tuple[int, int]) -> dict[str, Any]:
        return clip_history.totals(self.run, *epoch)

    def step(self, row: int, applied: bool, failures: list[Failure]) -> None:
        """Count a row that is done."""
        if not applied:
            self._skipped.append(row)
        self._failures += failures

    def end(self, position: DataPosition) -> None:
        """Record how far the segment went."""
        outcome = Outcome(rows=position.row, skipped=self._skipped, failures=self._failures)
        try:
            records.write_outcome(self.run, position.key, outcome)
        except OSError as error:
            logger.warning(f"the end of epoch {position.epoch} is not recorded ({error})")


def _as_told(run: RunFolder, key: Key, rows: int) -> Outcome:
    """Return how the first rows of a segment went, by the events."""
    for epoch in history.epochs(run):
        if (epoch.generation, epoch.epoch) == key[:2]:
            return epoch.outcome(key[2], rows)
    return Outcome(rows=rows)
