"""Values of strangers that no recipe can have: each is taken out of the draft again, and told beside its setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from reelworks.compat.draft import ImportDraft
from reelworks.compat.rules import Fate, ImportedKey
from reelworks.core.errors import UserError
from reelworks.recipe import recipe_file

_MOST = 200  # refused values
_KEPT = ("model.name", "dataset.path")  # without which there is no recipe


def settle(draft: ImportDraft, keys: Iterable[ImportedKey]) -> list[ImportedKey]:
    """Remove what the recipe refuses, one value after the other, and return the keys with what is to be done about each.

    Raises:
        UserError: What is wrong is no value that a setting gave, such as a model without its needed companions.
    """
    told = list(keys)
    for _ in range(_MOST):
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
    """Return the key of the draft that an error is about; errors of entries of lists may lack the number."""
    field = (error.field or "").removeprefix("--")
    candidates = [key for key in draft.assigned() if key == field or _without_number(key) == field]
    candidates = [key for key in candidates if draft.origin_of(key) and _without_number(key) not in _KEPT]
    same = [key for key in candidates if draft.get(key) == error.value]
    return next(iter(same or candidates), None)


def _without_number(key: str) -> str:
    return ".".join(part for part in key.split(".") if not part.isdecimal())
