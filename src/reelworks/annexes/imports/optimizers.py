"""Optimizers of other trainers: what each is here, the settings that it has there, and how it differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from reelworks.annexes.imports import rules, tables, values
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome

_LEAST_OF_PRODIGY = 0.01  # a rate that is meant as a factor is about 1


class FormerOptimizer(NamedTuple):
    """The optimizer here, the settings that it has there, and how it differs; "" if it does not."""

    name: str
    settings: Mapping[str, Any]
    differs: str = ""

    def set(self, draft: ImportDraft, there: str | None = None) -> Outcome:
        """Put it into a draft, with the settings of `there`, its name and trainer, of which the config may have others."""
        remark = draft.set("train.optimizer", self.name)
        origin = f"of {self.name}, which replaces {there}" if "replaces it" in self.differs else f"default of {there}"
        for key, value in self.settings.items() if there is not None else ():
            draft.set(f"train.{key}", value, origin)
        return rules.exact_or_nearest(remark, self.differs)


def of_trainer(folder: str) -> dict[str, FormerOptimizer]:
    """Return the optimizers of a trainer by patterns of their names, see `tables.fitting`."""
    return {pattern: FormerOptimizer(**row) for pattern, row in tables.table(folder, "optimizers").items()}


def rate(value: float, draft: ImportDraft) -> Outcome:
    """Set a learning rate; Prodigy multiplies the one that it finds by it."""
    if draft.get("train.optimizer") == "prodigy" and value < _LEAST_OF_PRODIGY:
        remark = draft.set("train.learning_rate", 1.0)
        return Fate.NOT_POSSIBLE, f"{remark}: Prodigy multiplies the rate that it finds by it"
    return Fate.TAKEN, draft.set("train.learning_rate", value)


def betas(given: Any, draft: ImportDraft) -> Outcome:
    """Set the first two of some betas; raises `ValueError` for others than numbers from 0 to 1."""
    found = [values.number(beta, 0, 1 - 1e-9) for beta in given][:2]
    if len(found) < 2:
        raise ValueError("two are needed")
    return Fate.TAKEN, draft.set("train.betas", found)
