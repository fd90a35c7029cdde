"""Optimizers of other trainers: what each is here, the settings that it has there, and how it differs."""

from __future__ import annotations

from typing import Any, NamedTuple

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome


class FormerOptimizer(NamedTuple):
    """The optimizer here, the settings that it has there, and how it differs; "" if it does not."""

    name: str
    settings: dict[str, Any]
    differs: str = ""

    def set(self, draft: ImportDraft, there: str) -> Outcome:
        """Put it into a draft with its settings, of which the config may have others; `there` is its name and trainer."""
        remark = draft.set("train.optimizer", self.name)
        for key, value in self.settings.items():
            draft.set(f"train.{key}", value, f"default of {there}")
        return (Fate.NOT_POSSIBLE, f"{remark}: {self.differs}") if self.differs else (Fate.TAKEN, remark)

    def replaces(self) -> FormerOptimizer:
        """Return it in place of one that is not here."""
        return self._replace(differs="it is not there, and AdamW replaces it")


def of_trainer(folder: str) -> dict[str, FormerOptimizer]:
    """Return the optimizers of a trainer by their names there."""
    return {name: FormerOptimizer(**found) for name, found in rules.table(folder, "optimizers").items()}
