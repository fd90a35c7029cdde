"""Translations of OneTrainer's settings to recipe keys, apart from those of concepts and samples."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import datasets, tables, values
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.onetrainer import models, objective, parts
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.trainer import choose_model, find_model
from reelworks.core.errors import UserError
from reelworks.models import registry

_MINUTES = {"SECOND": 1 / 60, "MINUTE": 1.0, "HOUR": 60.0}
_INTERVALS = {"backup_after": (30, "MINUTE"), "save_every": (0, "NEVER"), "sample_after": (10, "MINUTE")}
_TABLE = tables.table("onetrainer", "defaults")
FIRST: list[str] = _TABLE["first"]


def defaults(draft: ImportDraft) -> dict[str, Any]:
    """Return the defaults that differ here, of the parts of the model and of what is trained."""
    model = parts.model_of(draft)
    found = tables.defaults(_TABLE["all"]) | {f"{part}.train": True for part in model.texts}
    found |= {f"{model.part}.gradient_checkpointing": True, f"{model.part}.weight_dtype": "FLOAT_32"}
    found |= tables.defaults(_TABLE["lora"]) if parts.trains_adapter(draft) else {}
    return found | ({"sample_after": 10} if draft.settings.count("samples") else {})


def _model_type(value: Any, draft: ImportDraft) -> Outcome:
    texts = [str(draft.settings.get(key) or "") for key in ("base_model_name", "transformer.model_name")]
    preset = find_model(draft, "model_type", models.names_of(str(value), *texts))
    remark = choose_model(draft, preset, _weights_of(preset, *texts))
    draft.set("train.loss_reduction", "sample", "all clips of a step count alike")
    draft.set("validation.split", 0.0, "no clips are kept back")
    if datasets.conditioning_of(draft).guidance != "embedded":
        draft.set("objective.caption_dropout", 0.0, "captions are not dropped")
    draft.set("checkpoints.every_steps", None, "there is no such interval")
    return Fate.TAKEN, remark


def _weights_of(preset: str, base: str, transformer: str) -> str | None:
    """Return a file or folder other than the published one; addresses of files must be downloaded first."""
    if transformer and "://" not in transformer:
        return transformer
    known = registry.release_of(preset).weights or ""
    return base if base and base != known and registry.find(base) != preset and "://" not in base else None


def _method(value: Any, draft: ImportDraft) -> Outcome:
    if value == "LORA":
        return Fate.TAKEN, "[lora]"
    if value == "FINE_TUNE":
        return Fate.TAKEN, "all weights are trained: there is no [lora]"
    raise UserError(
        "embeddings are not trained here" if value == "EMBEDDING" else "this kind of training is not possible here",
        code="training-not-possible",
        field="training_method",
        value=value,
        remedy='train a LoRA: set training_method to "LORA"',
    )


def _interval(value: Any, draft: ImportDraft, name: str, table: str) -> Outcome:
    """Set when checkpoints are saved or previews made; backups and saves are the same here."""
    default, unit_by_default = _INTERVALS[name]
    every = values.number(draft.settings.get(name, default), 0)
    unit = str(draft.settings.get(f"{name}_unit", unit_by_default))
    if unit == "NEVER" or not every:
        return Fate.DEFAULT, "only at the end"
    if unit in ("STEP", "ALWAYS"):
        steps = int(every) // values.whole(draft.settings.get("gradient_accumulation_steps", 1))
        return Fate.TAKEN, draft.set(f"{table}.every_steps", max(steps, 1) if unit == "STEP" else 1)
    if table == "samples":
        return (
            Fate.NOT_POSSIBLE,
            "previews are made every so many steps: set samples.every_steps; until then, at the end",
        )
    if unit in _MINUTES:
        return Fate.TAKEN, draft.set("checkpoints.every_minutes", round(every * _MINUTES[unit], 4))
    remark = draft.set("checkpoints.at_epoch_end", True)
    return (Fate.TAKEN, remark) if every == 1 else (Fate.NOT_POSSIBLE, f"after each epoch: {remark}")


def _rolling(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("checkpoints.keep_last", values.whole(draft.settings.get("rolling_backup_count", 3)))


def _resolution(value: Any, draft: ImportDraft) -> Outcome:
    objective.sides_of(str(value))
    return Fate.TAKEN, "[[bucket]]"
