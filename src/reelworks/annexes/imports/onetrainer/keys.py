"""Translations of OneTrainer's settings to recipe keys, apart from those of concepts, samples, parts and adapters."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import datasets, optimizers, tables, values
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
_SCHEDULES = optimizers.schedules_of("onetrainer")


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


def _learning_rate(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get(f"{parts.model_of(draft).part}.learning_rate") is not None:
        return Fate.NO_MEANING, f"{parts.model_of(draft).part}.learning_rate decides"
    return parts.set_rate(value, draft)


def _scaler(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, f"train.learning_rate is multiplied by the root of {parts.rate_scale(draft)}"


def _warmup(value: Any, draft: ImportDraft) -> Outcome:
    steps = values.number(value)
    if steps > 1:
        taken = int(steps / values.whole(draft.settings.get("gradient_accumulation_steps", 1)))
        return Fate.TAKEN, draft.set("train.warmup_steps", taken)
    if steps <= 0:
        return Fate.TAKEN, draft.set("train.warmup_steps", 0)
    return Fate.TAKEN, optimizers.take_warmup_share(draft, steps, parts.processes(draft.settings))


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    own = tables.fitting(_SCHEDULES, str(value))
    if own.name == "constant":
        return Fate.NOT_POSSIBLE, own.differs
    factor = values.number(draft.settings.get("learning_rate_min_factor", 0.0), 0, 1)
    fate, remark = own.set(draft)
    if factor:
        remark += f", {draft.set('train.final_learning_rate', factor * draft.get('train.learning_rate', 1e-4))}"
    return fate, remark


def _ema(value: Any, draft: ImportDraft) -> Outcome:
    on = value in ("GPU", "CPU")
    draft.set("exports.weights", "ema" if on else "model")
    if draft.get("train.optimizer") == "schedulefree":
        return Fate.NO_MEANING, "schedulefree has an average of its own"
    if not on:
        return Fate.TAKEN, draft.set("train.ema_decay", 0.0)
    decay = values.number(draft.settings.get("ema_decay", 0.999), 0, 1 - 1e-9)
    # There, only every n-th step moves the average; here, each does, by as much in n steps.
    every = values.whole(draft.settings.get("ema_update_step_interval", 5))
    remark = draft.set("train.ema_decay", round(decay ** (1 / every), 8))
    return Fate.TAKEN, f"{remark}, {draft.set('train.ema_device', 'cpu')}" if value == "CPU" else remark


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    return parts.optimizer_of(draft.settings).set(draft)


def _betas(value: Any, draft: ImportDraft) -> Outcome:
    return optimizers.betas([parts.optimizer_setting(draft.settings, key) for key in ("beta1", "beta2")], draft)


def _eps(value: Any, draft: ImportDraft) -> Outcome:
    found = parts.optimizer_setting(draft.settings, "eps")
    return Fate.TAKEN, draft.set("train.eps", values.number(found or 1e-8, 1e-300))


def _decay(value: Any, draft: ImportDraft) -> Outcome:
    decay = values.number(parts.optimizer_setting(draft.settings, "weight_decay"), 0)
    remark = draft.set("train.weight_decay", decay)
    if decay and parts.optimizer_name(draft.settings) in ("ADAM", "ADAM_8BIT"):
        return Fate.NOT_POSSIBLE, f"{remark}: it is not part of the gradient here"
    return Fate.TAKEN, remark


def _remembered(value: Any, draft: ImportDraft) -> Outcome:
    if draft.key.startswith(f"optimizer_defaults.{parts.optimizer_name(draft.settings)}."):
        return Fate.NO_MEANING, "what optimizer.* leaves out"
    return Fate.NO_MEANING, "of an optimizer that is not used"
