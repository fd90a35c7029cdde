"""Translations of the settings of a job, and of its `train`, `save`, `logging` and `sample`, to recipe keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from reelworks.annexes.imports import datasets, optimizers, rules, tables
from reelworks.annexes.imports.ai_toolkit import models
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.core.toml_none import WORD as NONE

_OPTIMIZERS = optimizers.of_trainer("ai_toolkit")
_SCHEDULES = optimizers.schedules_of("ai_toolkit")
_LEAST_PRODIGY_RATE = 0.1  # a smaller one becomes 1.0 in ai-toolkit
_RELEASE_SHIFTS = ("shift", "flux_shift", "lumina2_shift")
_FLAT = ("linear", "weighted", "one_step", "two_step", "four_step", "eight_step", "next_sample")


def accumulation(settings: FormerSettings) -> int:
    """Return the number of its steps until the optimizer's; only the older of its two settings counts so."""
    value = settings.get("train.gradient_accumulation_steps", 1)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 1 else 1


def _steps(value: Any, draft: ImportDraft) -> Outcome:
    own = max(int(value) // accumulation(draft.settings), 1)
    remark = draft.set("train.max_steps", own)
    count = accumulation(draft.settings)
    return Fate.TAKEN, remark if own == value else f"{remark}: {count} steps there are one of the optimizer"


def _interval(value: Any, draft: ImportDraft, target: str) -> Outcome:
    """Convert steps between two events, which are micro-batches if ai-toolkit accumulates in its older way."""
    return Fate.TAKEN, draft.set(target, max(int(value) // accumulation(draft.settings), 1) if value else NONE)


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    return tables.fitting(_OPTIMIZERS, str(value).lower()).set(draft, f"{value} in ai-toolkit")


def _learning_rate(value: Any, draft: ImportDraft) -> Outcome:
    rate = float(value)
    if draft.get("train.optimizer") == "prodigy" and rate < _LEAST_PRODIGY_RATE:
        return Fate.TAKEN, f"{draft.set('train.learning_rate', 1.0)}, as ai-toolkit does below {_LEAST_PRODIGY_RATE}"
    return Fate.TAKEN, draft.set("train.learning_rate", rate)


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    warmup = "train.lr_scheduler_params.num_warmup_steps"
    if value == "constant_with_warmup" and warmup not in draft.settings.values:
        draft.set("train.warmup_steps", 1000 // accumulation(draft.settings))
    return tables.fitting(_SCHEDULES, value).set(draft)


def _timesteps(value: Any, draft: ImportDraft) -> Outcome:
    flat = value in _FLAT or any(draft.settings.get(f"train.linear_timesteps{v}") for v in ("", "2"))
    if value in _RELEASE_SHIFTS and not flat:
        remark = draft.set("objective.timestep_sampling", "uniform")
        name = models.architecture(draft.settings)
        grows = ", which grows with the size there" if value == "flux_shift" or name in models.BY_SIZE else ""
        if (own := models.SHIFTS.get(name)) is not None:
            return Fate.TAKEN, f"{remark}, {draft.set('objective.timestep_shift', own)}{grows}"
        return Fate.TAKEN, f"{remark}, with the release's shift, {draft.get('objective.timestep_shift')}{grows}"
    draft.set("objective.timestep_shift", NONE)
    if flat:
        remark = draft.set("objective.timestep_sampling", "uniform")
        if value == "weighted":
            return Fate.NOT_POSSIBLE, f"{remark}; its table of weights is not there, all timesteps count alike"
        if value not in ("linear", "sigmoid"):
            return Fate.NOT_POSSIBLE, f"{remark}; all timesteps are trained, and not a few"
        return Fate.TAKEN, remark
    remark = draft.set("objective.timestep_sampling", "logit-normal")
    if value == "sigmoid":
        return Fate.TAKEN, f"{remark}, without a shift"
    return Fate.NOT_POSSIBLE, f"{remark} replaces it"


def _limit(value: Any, draft: ImportDraft) -> Outcome:
    """Convert the first and last index of its descending timesteps to a range."""
    low, high = (draft.settings.get(f"train.{which}_denoising_steps", end) for which, end in (("min", 0), ("max", 999)))
    if (low, high) == (0, 999):
        return Fate.DEFAULT, "all timesteps"
    if not draft.is_flow:
        return Fate.NOT_POSSIBLE, "all timesteps are trained"
    return Fate.TAKEN, draft.set("objective.timestep_range", [float(max(999 - high, 0)), float(min(1000 - low, 1000))])


def _loss(value: Any, draft: ImportDraft) -> Outcome:
    draft.set("objective.huber_delta", 0.01)
    if value == "pseudo_huber":
        return Fate.TAKEN, f"{draft.set('objective.loss', 'huber')}, whose bend is sharper"
    return Fate.NOT_POSSIBLE, f"{draft.set('objective.loss', 'smooth-l1')} with a small delta replaces it"


def _guidance(value: Any, draft: ImportDraft) -> Outcome:
    target = draft.settings.get("train.guidance_loss_target", 3.0)
    scale = sum(target) / len(target) if isinstance(target, list) else float(target)
    remark = draft.set("objective.target_guidance_scale", scale)
    same = not isinstance(target, list) and not draft.settings.get("train.do_guidance_loss_cfg_zero")
    return (Fate.TAKEN, remark) if same else (Fate.NOT_POSSIBLE, f"{remark} for all clips, without CFG-Zero")


def _average(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("train.ema_config.use_ema") is not True:
        draft.set("exports.weights", "model", "no average")
        return Fate.TAKEN, draft.set("train.ema_decay", 0.0)
    draft.set("exports.weights", "ema", "")
    return Fate.TAKEN, draft.set("train.ema_decay", draft.settings.get("train.ema_config.ema_decay", 0.999))


def _never(value: Any, draft: ImportDraft) -> Outcome:
    for key in draft.assigned():
        if key.startswith("samples."):
            draft.remove(key)
    return Fate.TAKEN, "no samples.prompts"


def _texts(value: Any, draft: ImportDraft) -> Outcome:
    return rules.train_texts(draft)


def _prompts(draft: ImportDraft) -> Iterator[str]:
    settings, trigger = draft.settings, draft.settings.get("trigger_word")
    found = [settings.get(f"sample.samples.{number}.prompt") for number in range(settings.count("sample.samples"))]
    plain = settings.get("sample.prompts", [])
    for text in found or (plain if isinstance(plain, list) else []):
        if isinstance(text, str) and (own := text.partition(" --")[0].strip()):
            yield re.sub(r"\[(?:trigger|name)\]", lambda _: trigger if isinstance(trigger, str) else "", own)


def _previews(value: Any, draft: ImportDraft) -> Outcome:
    prompts = list(dict.fromkeys(_prompts(draft)))
    if not prompts:
        return Fate.DEFAULT, "no previews"
    wants = datasets.conditioning_of(draft)
    pictures = _given_pictures(draft.settings)
    kind = next(iter(wants.companions.needs), "reference" if wants.needs_first_frame else None)
    if kind is not None:
        if not pictures:
            return Fate.NOT_POSSIBLE, datasets.PICTURE_NEEDED
        draft.set(f"samples.{kind}", pictures if len(pictures) > 1 and kind == "source" else pictures[0])
    return Fate.TAKEN, draft.set("samples.prompts", prompts)


def _given_pictures(settings: FormerSettings) -> list[str]:
    """Return the pictures of the first preview, which all previews get here."""
    prompts = settings.get("sample.prompts", [])
    first = "sample.samples.0."
    found = [settings.get(f"{first}{key}") for key in ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3")]
    if isinstance(prompts, list):
        found += re.findall(r"--ctrl_img\s+(\S+)", str(next(iter(prompts), "")))
    return list(dict.fromkeys(str(path) for path in found if path))


def _preview_side(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, datasets.set_preview_side(draft, draft.key.replace("sample.", "samples."), value)


def _preview_frames(value: Any, draft: ImportDraft) -> Outcome:
    wanted = 1 if datasets.pictures_only(draft) else max(int(value), 1)
    return Fate.TAKEN, draft.set("samples.num_frames", datasets.frames_here(draft, wanted))


def _preview_picture(value: Any, draft: ImportDraft) -> Outcome:
    given = [key for key in ("source", "control", "reference") if draft.get(f"samples.{key}") is not None]
    if not given:
        return Fate.NOT_POSSIBLE, "the model takes no picture for previews here"
    if draft.numbers[:1] == (0,):
        return Fate.TAKEN, f"samples.{given[0]}"
    return Fate.NOT_POSSIBLE, "all previews have the pictures of the first"


def _reported(value: Any, draft: ImportDraft) -> Outcome:
    for key, name in (("project_name", "project"), ("run_name", "name")):
        if isinstance(own := draft.settings.get(f"logging.{key}"), str) and own:
            draft.set(f"logging.{name}", own, f"logging.{key}")
    return Fate.TAKEN, draft.set("logging.trackers", ["wandb"])


def _output(value: Any, draft: ImportDraft) -> Outcome:
    folder, name = draft.settings.get("training_folder"), draft.settings.get("config.name")
    parts = [part.rstrip("/\\") for part in (folder, name) if isinstance(part, str) and part.strip("/\\ ")]
    if not parts:
        return Fate.NO_MEANING, "runs/ and the recipe's name"
    return Fate.TAKEN, draft.set("output", "/".join(parts))


def _previews_of_samples(value: Any, draft: ImportDraft) -> Outcome:
    return (Fate.TAKEN, "samples.prompts") if draft.get("samples.prompts") else _previews(value, draft)
