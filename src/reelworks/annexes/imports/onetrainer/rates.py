"""Translations of OneTrainer's settings of the optimizer, of its rate and of the weight average."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import optimizers, tables, values
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.onetrainer import parts
from reelworks.annexes.imports.rules import Fate, Outcome

_SCHEDULES = optimizers.schedules_of("onetrainer")


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
