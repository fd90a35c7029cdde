"""Warm-ups that are a share of all steps: a recipe counts them in steps, which with epochs the clips tell."""

from __future__ import annotations

from dataclasses import replace

from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, ImportedKey

_WARMUP = "train.warmup_steps"


def share(draft: ImportDraft, part: float, processes: int) -> str:
    """Let the warm-up take a share of all steps, which processes share, and return what is to be said of it."""
    draft.warmup, draft.processes = (draft.key, part), processes
    return f"{part:g} of all steps"


def lacks_steps(draft: ImportDraft) -> bool:
    """Return whether the steps of an epoch have to be known."""
    ends = [isinstance(draft.get(f"train.{key}"), int) for key in ("max_steps", "max_epochs")]
    return draft.warmup is not None and ends == [False, True]


def finish(draft: ImportDraft, keys: tuple[ImportedKey, ...]) -> tuple[ImportedKey, ...]:
    """Set the steps of a warm-up, as far as they are known; return the keys with what they became."""
    if draft.warmup is None:
        return keys
    (origin, part), steps = draft.warmup, draft.get("train.max_steps")
    if lacks_steps(draft):
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
