"""Optimizers of other trainers, and schedules and warm-ups of the learning rate: what each is here, and how it differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from reelworks.annexes.imports import rules, tables, values
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, ImportedKey, Outcome

_LEAST_OF_PRODIGY = 0.01  # a rate that is meant as a factor is about 1
_WARMUP = "train.warmup_steps"


class FormerOptimizer(NamedTuple):
    """The optimizer here, the settings that it has there, how it differs, if it does, and whether it is another one."""

    name: str
    settings: Mapping[str, Any]
    differs: str = ""
    is_another: bool = False

    def set(self, draft: ImportDraft, there: str | None = None) -> Outcome:
        """Put it into a draft, with the settings of `there`, its name and trainer, of which the config may have others."""
        remark = draft.set("train.optimizer", self.name)
        origin = f"of {self.name}, which replaces {there}" if self.is_another else f"default of {there}"
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


class FormerSchedule(NamedTuple):
    """The schedule here, how it differs, "" if it does not, and the setting of the rate at its end; "" if that is 0."""

    name: str
    differs: str = ""
    end: str = ""

    def set(self, draft: ImportDraft) -> Outcome:
        """Put it into a draft."""
        return rules.exact_or_nearest(draft.set("train.learning_rate_schedule", self.name), self.differs)


def schedules_of(folder: str) -> dict[str, FormerSchedule]:
    """Return the schedules of a trainer by patterns of their names, see `tables.fitting`."""
    return {pattern: FormerSchedule(**row) for pattern, row in tables.table(folder, "schedules").items()}


def take_warmup_share(draft: ImportDraft, part: float, processes: int) -> str:
    """Let the warm-up take a share of all steps, which processes share, and return what is to be said of it."""
    draft.warmup, draft.processes = (draft.key, part), processes
    return f"{part:g} of all steps"


def lacks_warmup_steps(draft: ImportDraft) -> bool:
    """Return whether the steps of an epoch have to be known."""
    ends = [isinstance(draft.get(f"train.{key}"), int) for key in ("max_steps", "max_epochs")]
    return draft.warmup is not None and ends == [False, True]


def finish_warmup(draft: ImportDraft, keys: tuple[ImportedKey, ...]) -> tuple[ImportedKey, ...]:
    """Set the steps of a warm-up, as far as they are known; return the keys with what they became."""
    if draft.warmup is None:
        return keys
    (origin, part), steps = draft.warmup, draft.get("train.max_steps")
    if lacks_warmup_steps(draft):
        steps = None if draft.epoch_steps is None else draft.epoch_steps * draft.get("train.max_epochs")
    said = f"{part:g} of all steps"
    if not isinstance(steps, int) or not steps:  # no clip that was found here is large enough
        return tuple(_to_fill_in(key, part) if key.key == origin else key for key in keys)
    draft.begin(origin)
    found = f"{draft.set(_WARMUP, int(part * steps))}, {part:g} of {steps} steps"
    return tuple(replace(key, remark=key.remark.replace(said, found)) if key.key == origin else key for key in keys)


def _to_fill_in(key: ImportedKey, part: float) -> ImportedKey:
    fate = Fate.NOT_POSSIBLE if key.fate is Fate.NOT_POSSIBLE else Fate.TO_FILL_IN
    return replace(
        key, fate=fate, remark=f"{key.remark}: set {_WARMUP} to the steps that `reelworks plan` tells times {part:g}"
    )
