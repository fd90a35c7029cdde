"""Schedules of the learning rate of other trainers: what each is here after its warm-up, and how it differs."""

from __future__ import annotations

from typing import NamedTuple

from reelworks.annexes.imports import rules, tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Outcome


class FormerSchedule(NamedTuple):
    """The schedule here, how it differs, "" if it does not, and the setting of the rate at its end; "" if that is 0."""

    name: str
    differs: str = ""
    end: str = ""

    def set(self, draft: ImportDraft) -> Outcome:
        """Put it into a draft."""
        return rules.exact_or_nearest(draft.set("train.learning_rate_schedule", self.name), self.differs)


def of_trainer(folder: str) -> dict[str, FormerSchedule]:
    """Return the schedules of a trainer by patterns of their names, see `tables.fitting`."""
    return {pattern: FormerSchedule(**row) for pattern, row in tables.table(folder, "schedules").items()}
