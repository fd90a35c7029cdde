"""Translations of the options of optimizer, rates, timesteps, losses, previews, checkpoints and GPUs to recipe keys."""

from __future__ import annotations

import math
from typing import Any

from reelworks.annexes.imports import datasets, optimizers, rules, tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.simpletuner import models
from reelworks.core.toml_none import WORD as NONE

_OPTIMIZERS = optimizers.of_trainer("simpletuner")
_SCHEDULES = optimizers.schedules_of("simpletuner")


def _epochs(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("max_train_steps") and draft.settings.get("strict_epoch_limit") is not True:
        return Fate.NO_MEANING, "max_train_steps decides"
    if not value:
        return Fate.DEFAULT, "max_train_steps decides"
    return Fate.TAKEN, draft.set("train.max_epochs", math.ceil(value))


def _learning_rate(value: Any, draft: ImportDraft) -> Outcome:
    settings, rate = draft.settings, float(value)
    if settings.get("lr_scale") is True:
        factor = 1.0
        for key, default in (("train_batch_size", 4), ("gradient_accumulation_steps", 1), ("num_processes", 1)):
            factor *= float(settings.get(key, default))
        rate *= math.sqrt(factor) if settings.get("lr_scale_sqrt") is True else factor
    return optimizers.rate(rate, draft)


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    return tables.fitting(_OPTIMIZERS, str(value).lower()).set(draft, f"{value} in SimpleTuner")


def _optimizer_config(value: Any, draft: ImportDraft) -> Outcome:
    """Convert "weight_decay=0.01,eps=1e-8" for the settings that are here too."""
    pairs = [part.partition("=") for part in str(value).split(",") if part.strip()]
    told, rest = [], []
    for name, _, text in pairs:
        name = name.strip()
        if name in ("weight_decay", "eps"):
            told.append(draft.set(f"train.{name}", float(text)))
        else:
            rest.append(name)
    if rest:
        return Fate.NOT_POSSIBLE, f"{', '.join([*told, ''])}the optimizer has no {', '.join(rest)} here: leave it out"
    return (Fate.TAKEN, ", ".join(told)) if told else (Fate.DEFAULT, "none")


def _betas(value: Any, draft: ImportDraft) -> Outcome:
    pair: list[Any] = [draft.settings.get(f"optimizer_beta{number}") for number in (1, 2)]
    if None in pair:
        return Fate.NO_MEANING, "SimpleTuner takes both or none"
    return Fate.TAKEN, draft.set("train.betas", [float(beta) for beta in pair])


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    own = tables.fitting(_SCHEDULES, value)
    if value == "polynomial" and draft.settings.get("lr_power", 0.8) in (1, 1.0):
        own = own._replace(differs="")
    fate, remark = own.set(draft)
    if own.end:
        remark += f", {draft.set('train.final_learning_rate', float(draft.settings.get(own.end, 4e-7)))}"
    return fate, remark


def _noise_offset(value: Any, draft: ImportDraft) -> Outcome:
    offset, share = (
        float(draft.settings.get(*each)) for each in (("noise_offset", 0.1), ("noise_offset_probability", 0.25))
    )
    if not offset or not share:
        return Fate.DEFAULT, "off"
    remark = draft.set("objective.noise_offset", offset)
    return Fate.TAKEN, f"{remark}, {draft.set('objective.noise_offset_probability', share)}"


def _warmup(value: Any, draft: ImportDraft) -> Outcome:
    schedule = draft.settings.get("lr_scheduler", "constant_with_warmup")
    if schedule in ("cosine", "sine", "cosine_with_restarts"):
        return Fate.NO_MEANING, "it is the length of a wave of that schedule"
    if schedule == "constant" and draft.get("train.optimizer") != "schedulefree":
        return Fate.NO_MEANING, "constant has no warm-up there"
    return (Fate.TAKEN, draft.set("train.warmup_steps", value)) if value else (Fate.DEFAULT, "none")


def _clipping(value: Any, draft: ImportDraft) -> Outcome:
    remark = draft.set("train.max_grad_norm", value if value else NONE)
    if value and draft.settings.get("grad_clip_method", "value") == "value":
        return Fate.NOT_POSSIBLE, f"{remark} clips the norm of the whole gradient, and not each of its values"
    return Fate.TAKEN, remark


def _average(value: Any, draft: ImportDraft) -> Outcome:
    if value is not True:
        draft.set("exports.weights", "model", "no average")
        return Fate.TAKEN, draft.set("train.ema_decay", 0.0)
    draft.set("exports.weights", "ema", "")
    if draft.settings.get("ema_device", "cpu") == "cpu":
        draft.set("train.ema_device", "cpu")
    # There, only every n-th step moves the average; here, each does, by as much in n steps.
    decay, every = float(draft.settings.get("ema_decay", 0.995)), int(draft.settings.get("ema_update_interval") or 1)
    return Fate.TAKEN, draft.set("train.ema_decay", round(decay ** (1 / max(every, 1)), 8))


def _shift(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("flow_schedule_auto_shift") is True and not value:
        return Fate.NO_MEANING, "flow_schedule_auto_shift decides"
    if (own := models.shift_of(draft.settings, value)) is not None:
        return Fate.NO_MEANING, f"{draft.set('objective.timestep_shift', own)}, that of the flavour"
    return Fate.TAKEN, draft.set("objective.timestep_shift", float(value) if value else NONE)


def _auto_shift(value: Any, draft: ImportDraft) -> Outcome:
    if not value or draft.settings.get("flow_schedule_shift", 3.0):
        return Fate.DEFAULT, "off"
    return rules.exact_or_nearest(
        draft.set("objective.timestep_shift", "auto"), "it grows with the size by another rule"
    )


def _density(value: Any, draft: ImportDraft) -> Outcome:
    """Convert the density of timesteps, of which each kind has an option of its own."""
    settings = draft.settings
    if settings.get("flow_use_uniform_schedule") is True:
        return Fate.TAKEN, draft.set("objective.timestep_sampling", "uniform")
    if settings.get("flow_use_beta_schedule") is True:
        draft.set("objective.beta_alpha", float(settings.get("flow_beta_schedule_alpha", 2.0)))
        draft.set("objective.beta_beta", float(settings.get("flow_beta_schedule_beta", 2.0)))
        return Fate.TAKEN, draft.set("objective.timestep_sampling", "beta")
    draft.set("objective.timestep_sampling", "logit-normal")
    return Fate.TAKEN, draft.set("objective.logit_std", float(settings.get("flow_sigmoid_scale", 1.0)))


def _loss(value: Any, draft: ImportDraft) -> Outcome:
    schedule = draft.settings.get("huber_schedule", "snr")
    draft.set("objective.huber_delta", float(draft.settings.get("huber_c", 0.1)))
    if schedule == "exponential":
        draft.set("objective.huber_schedule", "exponential")
    remark = f"{draft.set('objective.loss', value.replace('_', '-'))}, whose bend is sharper"
    return rules.exact_or_nearest(remark, "its bound is the same at all timesteps" if schedule == "snr" else "")


def _prompts(value: Any, draft: ImportDraft) -> Outcome:
    prompt = draft.settings.get("validation_prompt")
    found = [prompt.strip()] if isinstance(prompt, str) and prompt.strip() not in ("", "None") else []
    if draft.settings.get("validation_disable") is True or not found:
        return Fate.DEFAULT, "no previews"
    if datasets.needs_picture(draft):
        return Fate.NOT_POSSIBLE, datasets.PICTURE_NEEDED
    return Fate.TAKEN, draft.set("samples.prompts", found)


def _preview_size(value: Any, draft: ImportDraft) -> Outcome:
    width, _, height = str(value).split(",")[0].strip().lower().partition("x")
    sides = [float(side) for side in (width, height or width)]
    sides = [side * 1000 if 0 < side < 10 else side for side in sides]  # megapixels
    remarks = [
        datasets.set_preview_side(draft, f"samples.{key}", side)
        for key, side in zip(("width", "height"), sides, strict=True)
    ]
    if "," in str(value):
        return Fate.NOT_POSSIBLE, f"{', '.join(remarks)}, the first of the sizes: previews have one"
    return Fate.TAKEN, ", ".join(remarks)


def _preview_frames(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("samples.num_frames", datasets.frames_here(draft, int(value)))


def _reported(value: Any, draft: ImportDraft) -> Outcome:
    text = str(value).lower()
    known = ["wandb"] if text == "all" else [name for name in ("wandb", "trackio") if name in text]
    if not known and value not in ("none", "None", "tensorboard", None, "", False):
        return Fate.NOT_POSSIBLE, "this tracker is not there"
    if not known:
        return Fate.DEFAULT, "TensorBoard is always written"
    for key, name in (("tracker_project_name", "project"), ("tracker_run_name", "name")):
        if isinstance(own := draft.settings.get(key), str) and own:
            draft.set(f"logging.{name}", own, key)
    return Fate.TAKEN, draft.set("logging.trackers", known)


def _shared_tokens(value: Any, draft: ImportDraft) -> Outcome:
    split = datasets.preset_of(draft).config.network.sequence
    if split is not None and split.pads:
        return Fate.TAKEN, draft.set("parallel.sequence_degree", value)
    return Fate.NOT_POSSIBLE, (
        "the tokens of this model's sizes cannot all be divided among ranks: set parallel.sequence_degree, and "
        "buckets.aspect_ratios to those of which they can"
    )


def _backends(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.count("data"):
        return Fate.TAKEN, "[[dataset]]"
    return Fate.TO_FILL_IN, "the data backends are not found: give them too, or replace the path of [[dataset]]"
