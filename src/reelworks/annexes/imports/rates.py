"""Rates that fall over epochs, and warm-ups that are a share of them: a recipe counts both in steps, which the clips tell."""

from __future__ import annotations

from dataclasses import replace

from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, ImportedKey

_SCHEDULE, _WARMUP = "train.learning_rate_schedule", "train.warmup_steps"


def share(draft: ImportDraft, part: float) -> str:
    """Let the warm-up take a share of all steps, and return what is to be said of it."""
    draft.warmup = (draft.key, part)
    return f"{part:g} of all steps"


def lacks_steps(draft: ImportDraft) -> bool:
    """Return whether the steps of an epoch have to be known."""
    counts = draft.warmup is not None or draft.get(_SCHEDULE, "constant") != "constant"
    return counts and not _has(draft, "max_steps") and _has(draft, "max_epochs")


def finish(draft: ImportDraft, keys: tuple[ImportedKey, ...], *, is_stage: bool) -> tuple[ImportedKey, ...]:
    """Set the steps of a rate that falls, and of a warm-up, as far as they are known; return the keys with what they became."""
    lacks = lacks_steps(draft)
    if lacks and is_stage and draft.get(_SCHEDULE, "constant") != "constant":
        return _constant(draft, keys)
    steps, why = draft.get("train.max_steps"), ""
    if lacks:
        steps = None if draft.epoch_steps is None else draft.epoch_steps * draft.get("train.max_epochs")
        why = f"{draft.get('train.max_epochs')} epochs of {draft.epoch_steps} steps on one process"
    if draft.warmup is not None:
        origin, part = draft.warmup
        keys = _with(keys, origin, f"{part:g} of all steps", _warmup(draft, origin, part, steps))
    if lacks and draft.get(_SCHEDULE, "constant") != "constant":
        own = draft.origin_of(_SCHEDULE)
        keys = _with(keys, own, "", _until(draft, own, steps, why))
    return keys


def _constant(draft: ImportDraft, keys: tuple[ImportedKey, ...]) -> tuple[ImportedKey, ...]:
    """Leave the rate of a stage constant: it can only fall over steps, which a stage of epochs does not have."""
    origin, wanted = draft.origin_of(_SCHEDULE), draft.get(_SCHEDULE)
    draft.remove(_SCHEDULE)
    draft.remove("train.final_learning_rate")
    remark = (
        f'the rate of this stage is constant until its steps are known: set {_SCHEDULE} = "{wanted}", and steps in its '
        "[[stage]] to the steps of an epoch (`reelworks plan`) times the epochs"
    )
    return tuple(replace(key, fate=Fate.TO_FILL_IN, remark=remark) if key.key == origin else key for key in keys)


def _warmup(draft: ImportDraft, origin: str, part: float, steps: int | None) -> str | None:
    if not isinstance(steps, int):
        return None
    draft.begin(origin)
    return f"{draft.set(_WARMUP, int(part * steps))}, {part:g} of {steps} steps"


def _until(draft: ImportDraft, origin: str, steps: int | None, why: str) -> str | None:
    if steps is None:
        return None
    draft.begin(origin)
    return draft.set("train.max_steps", max(steps, 1), why) + f", {why}"


def _has(draft: ImportDraft, key: str) -> bool:
    return isinstance(draft.get(f"train.{key}"), int)


def _with(keys: tuple[ImportedKey, ...], origin: str, said: str, found: str | None) -> tuple[ImportedKey, ...]:
    """Put what was found into the line of a setting, or what is to be filled in."""

    def with_it(key: ImportedKey) -> ImportedKey:
        if found is not None:
            return replace(key, remark=key.remark.replace(said, found) if said else f"{key.remark}, {found}")
        field = _WARMUP if said else "train.max_steps"
        remedy = f"set {field} to the steps that `reelworks plan` tells" + (f" times {said.split()[0]}" if said else "")
        fate = Fate.NOT_POSSIBLE if key.fate is Fate.NOT_POSSIBLE else Fate.TO_FILL_IN
        return replace(key, fate=fate, remark=f"{key.remark}: {remedy}")

    return tuple(with_it(key) if key.key == origin else key for key in keys)
