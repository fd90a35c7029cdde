"""Translations of diffusion-pipe's settings of the optimizer, its rate and the length of a training."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import optimizers, rules, tables, values
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule

_OPTIMIZERS = optimizers.of_trainer("diffusion_pipe")  # by their names in lower case; those of pytorch-optimizer, too
_ADAPTIVE = ("automagic", "genericoptim")
_LACKS = {"adafactor": ("betas", "eps"), "came": ("eps",)}
RATES_OF_TEXTS = ("model.text_encoder_1_lr", "model.text_encoder_2_lr")


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    name = values.text(value).lower()
    own = tables.fitting(_OPTIMIZERS, name)
    is_muon = name == "genericoptim" and any(
        draft.settings.get(f"optimizer.{k}") for k in ("muon", "adamuon", "normuon")
    )
    fate, remark = (own._replace(name="muon", differs="the nearest") if is_muon else own).set(draft)
    if own.name == "schedulefree":
        draft.remove("train.ema_decay")  # it has an average of its own
    if name in _ADAPTIVE and not is_muon:
        remark += f", with {draft.set('train.learning_rate', 1e-4, 'usual with AdamW')}"
    return fate, remark


def _of_optimizer(value: Any, draft: ImportDraft, key: str, rule: Rule) -> Outcome:
    """Take a number of the optimizer, or its default there."""
    name = str(draft.settings.get("optimizer.type", "adamw")).lower()
    if key == "learning_rate" and draft.get("model.name") == "sdxl" and draft.settings.get("model.unet_lr"):
        return Fate.NO_MEANING, "model.unet_lr decides"
    if key in _LACKS.get(draft.get("train.optimizer"), ()):
        return Fate.NO_MEANING, f"{draft.get('train.optimizer')} has none here"
    if key == "learning_rate" and name in _ADAPTIVE and draft.source_of("train.learning_rate"):
        return Fate.NOT_POSSIBLE, "rates that adapt by themselves are not possible"
    own = tables.fitting(_OPTIMIZERS, name).settings.get(key) if value is None else value
    return (Fate.DEFAULT, "ours") if own is None else rule(own, draft)


def _eps(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("train.eps", values.number(value[0] if isinstance(value, list) else value, 1e-300))


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    if value not in ("linear", "cosine"):
        raise ValueError("no such schedule")
    remark = draft.set("train.learning_rate_schedule", value)
    if value == "cosine":
        remark += f", {draft.set('train.final_learning_rate', min(1e-6, draft.get('train.learning_rate', 1e-4)))}"
    if draft.settings.get("max_steps") is not None:
        return Fate.NOT_POSSIBLE, f"{remark}: it falls until train.max_steps, and over all epochs there"
    return Fate.TAKEN, remark


def _epochs(value: Any, draft: ImportDraft) -> Outcome:
    if value is None and draft.settings.get("max_steps") is not None:
        return Fate.DEFAULT, "max_steps decides"
    return rules.passes(value, draft, "train.max_epochs")
