"""Explain mistakes in a recipe by field, value and remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from reelworks.core import toml_none
from reelworks.core.errors import UserError, nearest
from reelworks.recipe.recipe import Recipe

_SHOWN = 6  # problems listed at once
_REFERENCE = "see docs/reference/recipe.md"
_TYPE_WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": 'text in quotes, as in "..."',
    "bool_type": "true or false",
    "list_type": "a list, as in [1, 17]",
    "dict_type": "a table",
    "model_type": "a table",
}
# Keys of earlier versions, and what to write instead.
_RENAMED = {
    "buckets.compat": "buckets.opensora_drop_exact_length",
    "data.first_frame": "data.clip_start",
    "data.locality_clips": "data.shuffle_window",
    "data.max_failure_share": "data.max_decode_failures",
    "data.prefetch_micro_batches": 'data.prefetch_bytes, a size such as "2GB"',
    "dataset.prior_preservation": "dataset.prior_prediction",
    "dataset.weight": "dataset.repeats, which can be any number above 0, as the product of both",
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


# Keys of other trainers, without the underscores and hyphens that they are spelt with, and what to write here.
_ELSEWHERE = {
    "alpha": "lora.alpha",
    "batchsize": "buckets.batch_size, or batch_size in a [[bucket]]",
    "cachelatents": "encode.store",
    "captionext": "nothing: captions are read from .txt files beside the clips",
    "captionprefix": 'dataset.caption, as in "WORD, {text}"',
    "checkpointingsteps": "checkpoints.every_steps",
    "checkpointevery": "checkpoints.every_steps",
    "datasetpath": "dataset.path",
    "dim": "lora.rank",
    "discreteflowshift": "objective.timestep_shift",
    "epochs": "train.max_epochs",
    "flowshift": "objective.timestep_shift",
    "folderpath": "dataset.path",
    "frames": "bucket.num_frames",
    "framebuckets": "bucket.num_frames",
    "gradientaccumulation": "train.gradient_accumulation_steps",
    "instancedatadir": "dataset.path",
    "instanceprompt": "dataset.caption, or dataset.missing_caption for clips without one",
    "learningrate": "train.learning_rate",
    "linear": "lora.rank",
    "linearalpha": "lora.alpha",
    "lr": "train.learning_rate",
    "lrscheduler": "train.learning_rate_schedule",
    "lrwarmupsteps": "train.warmup_steps",
    "maxtrainepochs": "train.max_epochs",
    "maxtrainsteps": "train.max_steps",
    "mixedprecision": "precision.compute",
    "modelname": "model.name",
    "nameorpath": "model.weights",
    "networkalpha": "lora.alpha",
    "networkdim": "lora.rank",
    "networkrank": "lora.rank",
    "numepochs": "train.max_epochs",
    "numrepeats": "dataset.repeats",
    "numtrainepochs": "train.max_epochs",
    "numtrainsteps": "train.max_steps",
    "optimizertype": "train.optimizer",
    "outputdir": "output",
    "outputname": "output",
    "pretrainedmodelnameorpath": "model.weights",
    "prompts": "samples.prompts",
    "resolution": 'a [[bucket]] with resolution = "512px"',
    "sampleevery": "samples.every_steps",
    "saveevery": "checkpoints.every_steps",
    "saveeverynepochs": "checkpoints.at_epoch_end",
    "saveeverynsteps": "checkpoints.every_steps",
    "size": 'a [[bucket]] with resolution = "512px"',
    "steps": "train.max_steps",
    "traindatadir": "dataset.path",
    "trainbatchsize": "buckets.batch_size, or batch_size in a [[bucket]]",
    "triggerword": 'dataset.caption, as in "WORD, {text}"',
    "warmup": "train.warmup_steps",
}


def explain(error: ValidationError) -> UserError:
    """Combine all problems into one error: the first in full, the others below its remedy."""
    # An unknown key is told first: it is often the cause of the others.
    errors = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    paths = [_path(e) for e in errors]
    # Each alternative of a union reports an error; the most specific path belongs to the intended one.
    first, *others = [
        _problem(e)
        for e, path in zip(errors, paths, strict=True)
        if not any(len(p) > len(path) and p[: len(path)] == path for p in paths)
    ]
    more = [f"\n  also {p.field} = {p.value!r}: {p.problem}; {p.remedy}" for p in others[: _SHOWN - 1]]
    return UserError(
        first.problem, code=first.code, field=first.field, value=first.value, remedy=first.remedy + "".join(more)
    )


def _problem(error: Any) -> UserError:
    path = _path(error)
    field = ".".join(str(part) for part in path)
    kind, value, message = error["type"], error["input"], error["msg"]
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return cause
    if kind == "extra_forbidden":
        new = _RENAMED.get(".".join(part for part in path if isinstance(part, str)))
        if new is not None:
            return UserError(
                "this key was renamed", code="renamed-key", field=field, value=value, remedy=f"write {new}"
            )
        elsewhere = _ELSEWHERE.get(re.sub("[_-]", "", str(path[-1]).casefold()))
        remedy = f"write {elsewhere}" if elsewhere else nearest(str(path[-1]), _keys_beside(path))
        return UserError("there is no such key", code="unknown-key", field=field, value=value, remedy=remedy)
    if kind == "missing":
        return UserError("this key is required", code="key-missing", field=field, remedy=f"add {field} to the recipe")
    if kind in _TYPE_WORDS:
        return UserError("wrong type", code="wrong-type", field=field, value=value, remedy=f"give {_TYPE_WORDS[kind]}")
    if kind == "string_too_short":
        return UserError(
            "the value is empty", code="empty-value", field=field, value=value, remedy="give a text, or remove the key"
        )
    if message.startswith("Input should be "):
        allowed = message.removeprefix("Input should be ")
        noun = "a number " if allowed.startswith(("greater", "less")) else ""
        suggestion = _suggestion(value, allowed) if kind == "literal_error" and isinstance(value, str) else ""
        return UserError(
            "the value is not allowed",
            code="value-not-allowed",
            field=field,
            value=value,
            remedy=f"{suggestion}give {noun}{allowed}",
        )
    message = message.removeprefix("Value error, ")
    return UserError(
        message[:1].lower() + message[1:], code="value-invalid", field=field, value=value, remedy=_REFERENCE
    )


def _suggestion(value: str, allowed: str) -> str:
    """Suggest the allowed value that is closest to a misspelt one, such as "AdamW"."""
    close = difflib.get_close_matches(value.casefold(), re.findall("'([^']*)'", allowed), n=1, cutoff=0.8)
    return f'did you mean "{close[0]}"? Else ' if close else ""


def _path(error: Any) -> list[int | str]:
    """Return the keys of a place without the types that pydantic adds for each alternative of a union."""
    return [
        part
        for part in error["loc"]
        if "[" not in str(part) and part not in ("int", "float", "constrained-float", "str")
    ]


def _keys_beside(path: Sequence[int | str]) -> list[str]:
    """Return the valid keys of the table that contains the last element of a path."""
    config: type[BaseModel] = Recipe
    for part in path[:-1]:
        if isinstance(part, str):
            config = toml_none.config_in(config.model_fields[part].annotation) or config
    return list(config.model_fields)
