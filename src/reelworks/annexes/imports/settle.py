"""Values of strangers that no recipe can have: each is taken out of the draft again, and told beside its setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from reelworks.annexes.imports import datasets
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, ImportedKey
from reelworks.core.errors import UserError
from reelworks.core.toml_none import WORD as NONE
from reelworks.training.recipe import recipe_file

_MOST = 200  # refused values
_KEPT = ("model.name", "dataset.path", "bucket.resolution", "bucket.num_frames")  # without which there is no recipe
_STEPS = 1000


def settle(draft: ImportDraft, keys: Iterable[ImportedKey]) -> list[ImportedKey]:
    """Remove what the recipe refuses, one value after the other, and return the keys with what is to be done about each.

    Raises:
        UserError: What is wrong is no value that a setting gave, such as a model without its needed companions.
    """
    told = [*keys, *datasets.needed(draft)]
    for _ in range(_MOST):
        if all(draft.get(f"train.{key}") in (None, NONE) for key in ("max_steps", "max_epochs")):
            draft.begin("")
            draft.set("train.max_steps", _STEPS, "to fill in")
        try:
            recipe_file.parse(draft.values())
            return told
        except UserError as error:
            refused = _place_of(error, draft)
            if refused is None:
                raise
            origin = draft.origin_of(refused)
            draft.remove(refused)
            remark = f"{refused} cannot have this value ({error.problem}): set it by hand; {error.remedy}"
            told = [replace(key, fate=Fate.TO_FILL_IN, remark=remark) if key.key == origin else key for key in told]
    return told


def _place_of(error: UserError, draft: ImportDraft) -> str | None:
    """Return the key of the draft that an error is about; errors may lack the number of an entry, or name a whole table."""
    field = (error.field or "").removeprefix("--")
    own = [key for key in draft.assigned() if draft.origin_of(key) and _without_number(key) not in _KEPT]
    candidates = [key for key in own if field in (key, _without_number(key)) or field.startswith(f"{key}.")]
    same = [key for key in candidates if draft.get(key) == error.value]
    if found := next(iter(same or candidates), None):
        return found
    return next((key for key in own if key.partition(".")[0] == field and _is_wrong(key, error, draft)), None)


def _is_wrong(key: str, error: UserError, draft: ImportDraft) -> bool:
    """Return whether a table would no longer be refused in the same way without one of its keys."""
    values = draft.values()
    table, _, name = key.partition(".")
    values[table] = {other: value for other, value in values[table].items() if other != name}
    try:
        recipe_file.parse(values)
    except UserError as other:
        return other.problem != error.problem
    return True


def _without_number(key: str) -> str:
    return ".".join(part for part in key.split(".") if not part.isdecimal())
