"""Mistakes in a recipe, told as field, value and remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from reelworks.core import toml_none
from reelworks.core.errors import UserError, nearest
from reelworks.recipe.recipe import Recipe

_SHOWN = 6  # problems told at once
_REFERENCE = "see docs/reference/recipe.md"
_TYPE_WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": 'a text in quotes, as in "..."',
    "bool_type": "true or false",
    "list_type": "a list, as in [1, 17]",
    "dict_type": "a table",
    "model_type": "a table",
}
# Keys as earlier versions had them, and what to write today.
_RENAMED = {
    "buckets.compat": "buckets.opensora_drop_exact_length",
    "data.first_frame": "data.clip_start",
    "data.locality_clips": "data.shuffle_window",
    "data.max_failure_share": "data.max_decode_failures",
    "dataset.prior_preservation": "dataset.prior_prediction",
    "dataset.weight": "dataset.repeats, which takes any number above 0: the product of both",
    "exports.every_saves": "exports.every_n_saves",
    "objective.compat": "objective.opensora_frame_quantization",
    "preview": "[samples]",
    "quarantine": "exclude_file",
    "text": "[text_encoder]",
    "train.clip_norm": "train.max_grad_norm",
    "train.loss_weight": "train.loss_reduction",
    "train.slot_width": "train.same_bucket_run",
    "validation.times": "validation.timesteps",
}


def explain(error: ValidationError) -> UserError:
    """Make one error of all that is wrong: the first problem in full, the others below its remedy."""
    found = error.errors()
    paths = [_path(e) for e in found]
    # Of the alternatives of a union, the one meant is that of which a part is wrong.
    meant = [e for e, path in zip(found, paths, strict=True) if not any(_is_part(p, path) for p in paths)]
    first, *others = [_problem(e) for e in meant]
    more = [f"\n  also {p.field} = {p.value!r}: {p.problem}; {p.remedy}" for p in others[: _SHOWN - 1]]
    return UserError(
        first.problem,
        code=first.code,
        field=first.field,
        value=first.value,
        remedy=first.remedy + "".join(more),
    )


def _problem(error: Any) -> UserError:
    """One of pydantic's errors as ours."""
    path = _path(error)
    field = ".".join(str(part) for part in path)
    kind, value, message = error["type"], error["input"], error["msg"]
    told = error.get("ctx", {}).get("error")
    if isinstance(told, UserError):
        return told
    if kind == "extra_forbidden":
        if (now := _RENAMED.get(".".join(str(part) for part in path if isinstance(part, str)))) is not None:
            return UserError(
                "this key has another name now",
                code="renamed-key",
                field=field,
                value=value,
                remedy=f"write {now}",
            )
        remedy = nearest(str(path[-1]), _keys_beside(path))
        return UserError("there is no such key", code="unknown-key", field=field, value=value, remedy=remedy)
    if kind == "missing":
        return UserError(
            "this key is needed", code="key-missing", field=field, remedy=f"add {field} to the recipe"
        )
    if kind in _TYPE_WORDS:
        return UserError(
            "wrong type", code="wrong-type", field=field, value=value, remedy=f"give {_TYPE_WORDS[kind]}"
        )
    if kind == "string_too_short":
        return UserError(
            "this is empty",
            code="empty-value",
            field=field,
            value=value,
            remedy="give a text, or remove the key",
        )
    if message.startswith("Input should be "):
        allowed = message.removeprefix("Input should be ")
        what = "a number " if allowed.startswith(("greater", "less")) else ""
        spelt = _spelt(value, allowed) if kind == "literal_error" and isinstance(value, str) else ""
        return UserError(
            "this value is not allowed",
            code="value-not-allowed",
            field=field,
            value=value,
            remedy=f"{spelt}give {what}{allowed}",
        )
    message = message.removeprefix("Value error, ")
    return UserError(
        message[:1].lower() + message[1:], code="value-invalid", field=field, value=value, remedy=_REFERENCE
    )


def _spelt(value: str, allowed: str) -> str:
    """Suggest the allowed value that a misspelt one was meant to be: "AdamW", "adamw_8bit"."""
    close = difflib.get_close_matches(value.casefold(), re.findall("'([^']*)'", allowed), n=1, cutoff=0.8)
    return f'did you mean "{close[0]}"? Else ' if close else ""


def _path(error: Any) -> list[int | str]:
    return [part for part in error["loc"] if not _names_a_type(part)]


def _is_part(path: Sequence[int | str], of: Sequence[int | str]) -> bool:
    return len(path) > len(of) and path[: len(of)] == of


def _names_a_type(part: int | str) -> bool:
    """Inside a union, pydantic puts the alternative's type among the keys."""
    return isinstance(part, str) and ("[" in part or part in ("int", "float", "str"))


def _keys_beside(path: Sequence[int | str]) -> list[str]:
    """Keys that the table holding the last element of a path knows."""
    config: type[BaseModel] = Recipe
    for part in path[:-1]:
        if isinstance(part, str):
            config = toml_none.config_in(config.model_fields[part].annotation) or config
    return list(config.model_fields)
