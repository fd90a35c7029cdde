"""Translations of diffusion-pipe's settings of the optimizer, its rate and the length of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reelworks.annexes.imports import rules, values
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule

# Optimizers by their names in lower case; those of its library pytorch-optimizer, too.
_OPTIMIZERS = {
    **dict.fromkeys(("adamw", "adamw_optimi", "offload"), "adamw"),
    **dict.fromkeys(("adamw8bit", "adamw8bitkahan"), "adamw8bit"),
    **dict.fromkeys(("prodigy",), "prodigy"),
    **dict.fromkeys(("muon",), "muon"),
    **dict.fromkeys(("came",), "came"),
    **dict.fromkeys(("adafactor",), "adafactor"),
    **dict.fromkeys(("schedulefreeadamw",), "schedulefree"),
}
# Defaults of each optimizer there: rate, betas, epsilon and weight decay. None are those of the recipe.
_OF_OPTIMIZERS: Mapping[str, tuple[float | None, list[float] | None, float | None, float]] = {
    "adamw": (1e-3, [0.9, 0.999], 1e-8, 0.01),
    "adamw8bit": (1e-3, [0.9, 0.999], 1e-8, 0.01),
    "adamw_optimi": (None, [0.9, 0.99], 1e-6, 0.0),
    "stableadamw": (None, [0.9, 0.99], 1e-6, 0.0),
    "adamw8bitkahan": (None, [0.9, 0.99], 1e-6, 0.0),
    "offload": (1e-3, [0.9, 0.999], 1e-8, 0.01),
    "prodigy": (1.0, [0.9, 0.999], 1e-8, 0.0),
    "adafactor": (1e-3, None, None, 0.0),
    "came": (2e-4, [0.9, 0.999], None, 0.0),
    "schedulefreeadamw": (2.5e-3, [0.9, 0.999], 1e-8, 0.0),
}
_ADAPTIVE = ("automagic", "genericoptim")
_LACKS = {"adafactor": ("betas", "eps"), "came": ("eps",), "schedulefree": ()}
RATES_OF_TEXTS = ("model.text_encoder_1_lr", "model.text_encoder_2_lr")


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    name = values.text(value).lower()
    if name in _OPTIMIZERS:
        remark = draft.set("train.optimizer", _OPTIMIZERS[name])
        if _OPTIMIZERS[name] == "schedulefree":
            draft.remove("train.ema_decay")  # it has an average of its own
        if name == "offload":
            return Fate.NOT_POSSIBLE, f"{remark}; to keep its state in CPU memory, set parallel.offload = true"
        return Fate.TAKEN, remark
    if name == "genericoptim" and any(draft.settings.get(f"optimizer.{key}") for key in ("muon", "adamuon", "normuon")):
        return Fate.NOT_POSSIBLE, f"the nearest: {draft.set('train.optimizer', 'muon')}"
    nearest = draft.set("train.optimizer", "adamw")
    rate = f", and {draft.set('train.learning_rate', 1e-4, 'usual with AdamW')}" if name in _ADAPTIVE else ""
    return Fate.NOT_POSSIBLE, f"there is no {value} here: {nearest}{rate}"


def _of_optimizer(key: str, position: int, rule: Rule) -> Rule:
    """Take a number of the optimizer, or its default there."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        name = str(draft.settings.get("optimizer.type", "adamw")).lower()
        if key == "learning_rate" and draft.get("model.name") == "sdxl" and draft.settings.get("model.unet_lr"):
            return Fate.NO_MEANING, "model.unet_lr is that of the network"
        if key in _LACKS.get(draft.get("train.optimizer"), ()):
            return Fate.NO_MEANING, f"{draft.get('train.optimizer')} has none here"
        if key == "learning_rate" and name in _ADAPTIVE and draft.source_of("train.learning_rate"):
            return Fate.NOT_POSSIBLE, "rates that adapt by themselves are not possible"
        default = _OF_OPTIMIZERS.get(name, (None, None, None, 0.0))[position]
        if value is None and default is None:
            return Fate.DEFAULT, "ours"
        return rule(default if value is None else value, draft)

    return handle


def _betas(value: Any, draft: ImportDraft) -> Outcome:
    betas = [values.number(beta, 0, 1 - 1e-9) for beta in value][:2]
    if len(betas) < 2:
        raise ValueError("two are needed")
    return Fate.TAKEN, draft.set("train.betas", betas)


def _eps(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("train.eps", values.number(value[0] if isinstance(value, list) else value, 1e-300))


def _constant_rate(value: Any, draft: ImportDraft) -> Outcome:
    draft.set("train.learning_rate_schedule", "constant")
    return Fate.TAKEN, draft.set("train.learning_rate", values.number(value, 1e-300))


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    if value == "constant":
        return Fate.DEFAULT, "the rate is constant after warm-up"
    if value not in ("linear", "cosine"):
        raise ValueError("no such schedule")
    if "force_constant_lr" in draft.settings.values:
        return Fate.NO_MEANING, "force_constant_lr decides"
    if draft.get("train.optimizer") == "schedulefree":
        return Fate.NO_MEANING, "the rate of this optimizer is constant"
    remark = draft.set("train.learning_rate_schedule", value)
    if value == "cosine":
        remark += f", {draft.set('train.final_learning_rate', min(1e-6, draft.get('train.learning_rate', 1e-4)))}"
    if draft.settings.get("max_steps") is not None:
        return Fate.NOT_POSSIBLE, f"{remark}: it falls until train.max_steps, and over all epochs there"
    return Fate.TAKEN, remark


def _epochs(value: Any, draft: ImportDraft) -> Outcome:
    if value is None and draft.settings.get("max_steps") is not None:
        return Fate.DEFAULT, "max_steps decides"
    return rules.passes("train.max_epochs")(value, draft)
