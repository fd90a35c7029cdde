"""Translations of the settings of a job, of `save`, `logging` and `sample` to recipe keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from reelworks.annexes.imports import datasets, rules
from reelworks.annexes.imports.ai_toolkit import train_keys
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule

_FILE_DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "float16"), "float16"),
    **dict.fromkeys(("fp32", "float32", "float"), "float32"),
}


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
    if wants.needs_first_frame or "source" in wants.needs:
        if not pictures:
            return (
                Fate.NOT_POSSIBLE,
                "previews need a picture: set samples.prompts with samples.source or samples.reference",
            )
        key = "samples.source" if "source" in wants.takes else "samples.reference"
        draft.set(key, pictures if len(pictures) > 1 and key == "samples.source" else pictures[0])
    return Fate.TAKEN, draft.set("samples.prompts", prompts)


def _given_pictures(settings: FormerSettings) -> list[str]:
    """Return the pictures of the first preview, which all previews get here."""
    prompts = settings.get("sample.prompts", [])
    first = "sample.samples.0."
    found = [settings.get(f"{first}{key}") for key in ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3")]
    if isinstance(prompts, list):
        found += re.findall(r"--ctrl_img\s+(\S+)", str(next(iter(prompts), "")))
    return list(dict.fromkeys(str(path) for path in found if path))


def _if_previewed(rule: Rule) -> Rule:
    """Convert a setting of previews only if there are any."""
    return lambda value, draft: rule(value, draft) if draft.get("samples.prompts") else (Fate.NO_MEANING, "no previews")


def _preview_side(key: str) -> Rule:
    return _if_previewed(lambda value, draft: (Fate.TAKEN, datasets.set_preview_side(draft, key, value)))


def _preview_frames(value: Any, draft: ImportDraft) -> Outcome:
    wanted = 1 if datasets.pictures_only(draft) else max(int(value), 1)
    return Fate.TAKEN, draft.set("samples.num_frames", datasets.frames_here(draft, wanted))


def _preview_picture(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("samples.source") is None and draft.get("samples.reference") is None:
        return Fate.NOT_POSSIBLE, "the model takes no picture for previews here"
    if draft.numbers[:1] == (0,):
        return Fate.TAKEN, f"samples.{'source' if draft.get('samples.source') else 'reference'}"
    return Fate.NOT_POSSIBLE, "all previews have the pictures of the first"


def _reported(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
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


def _seed(value: Any, draft: ImportDraft) -> Outcome:
    return (Fate.TAKEN, draft.set("seed", value)) if value is not None else (Fate.NO_MEANING, "seed = 42 by default")


_ADAPTER = "adapters of this kind (IP-Adapter, ControlNet, T2I) are not trained: leave it out"

RULES: dict[str, Rule] = {
    "job": rules.without_meaning("the trainer's own kind of job"),
    "meta.*": rules.without_meaning("a note in its files"),
    "config.name": _output,
    "training_folder": _output,
    "type": rules.without_meaning("all models are trained by the same program"),
    "name": rules.without_meaning("config.name is the run's"),
    "device": rules.without_meaning("the GPU of the command, or those of torchrun"),
    "sqlite_db_path": rules.without_meaning("of its page; `reelworks ui` needs none"),
    "performance_log_every": rules.without_meaning("times are always logged"),
    "log_dir": rules.without_meaning("TensorBoard is written into the run's folder"),
    "torch_profiler": rules.without_meaning("`reelworks tune` measures"),
    "training_seed": _seed,
    "first_sample.*": rules.without_meaning("`reelworks generate` shows the untrained model"),
    "guidance.*": rules.impossible(train_keys.OTHER_LOSS),
    "embedding.*": rules.impossible("textual inversions are not trained: train a LoRA"),
    "decorator.*": rules.impossible("decorators are not trained: train a LoRA"),
    "adapter.*": rules.impossible(_ADAPTER),
    "do_lorm": rules.impossible("LoRM is not there"),
    "lorm_extract_mode": rules.without_meaning("it belongs to LoRM"),
    "lorm_extract_mode_param": rules.without_meaning("it belongs to LoRM"),
    "process.*": rules.impossible("a recipe is one run: put each process into a file of its own, and import that", ()),
    "save.save_every": train_keys.interval("checkpoints.every_steps"),
    "save.dtype": rules.by_name("exports.dtype", _FILE_DTYPES, "bfloat16", "this dtype is not there"),
    "save.max_step_saves_to_keep": rules.to("checkpoints.keep_last"),
    "save.save_format": rules.without_meaning("exports.formats decides on the file"),
    "save.push_to_hub": rules.impossible("files are not sent to the hub: use `hf upload`"),
    "save.hf_repo_id": rules.without_meaning("files are not sent to the hub"),
    "save.hf_private": rules.without_meaning("files are not sent to the hub"),
    "logging.log_every": rules.without_meaning("TensorBoard has every step"),
    "logging.verbose": rules.without_meaning("train.log_every decides"),
    "logging.use_wandb": _reported,
    "logging.use_ui_logger": rules.without_meaning("`reelworks ui` shows any run"),
    "logging.project_name": rules.read_with("logging.use_wandb"),
    "logging.run_name": rules.read_with("logging.use_wandb"),
    "sample.prompts": _previews,
    "sample.samples.*.prompt": lambda value, draft: (
        (Fate.TAKEN, "samples.prompts") if draft.get("samples.prompts") else _previews(value, draft)
    ),
    "sample.samples": rules.without_meaning("empty"),
    "sample.sample_every": _if_previewed(train_keys.interval("samples.every_steps")),
    "sample.sample_start_step": rules.only((0,), "from the start", "previews begin after samples.every_steps"),
    "sample.width": _preview_side("samples.width"),
    "sample.height": _preview_side("samples.height"),
    "sample.num_frames": _if_previewed(_preview_frames),
    "sample.fps": _if_previewed(
        lambda value, draft: (
            (Fate.TAKEN, draft.set("samples.fps", float(value)))
            if value and not datasets.pictures_only(draft)
            else (Fate.NO_MEANING, "pictures")
        )
    ),
    "sample.guidance_scale": _if_previewed(
        lambda value, draft: (Fate.TAKEN, draft.set("samples.guidance_scale", max(float(value), 1.0)))
    ),
    "sample.sample_steps": _if_previewed(rules.to("samples.num_inference_steps")),
    "sample.sampler": rules.without_meaning("the objective's sampler"),
    "sample.neg": rules.impossible("previews have no negative prompt: the empty caption takes its place"),
    "sample.seed": rules.without_meaning("previews have the same noise each time"),
    "sample.walk_seed": rules.without_meaning("each prompt has its own noise"),
    "sample.network_multiplier": rules.only((1, 1.0), "1", "the LoRA has its full strength"),
    "sample.guidance_rescale": rules.only((0, 0.0), "off", "guidance is not rescaled"),
    "sample.format": rules.without_meaning("pictures are PNG, clips are MP4"),
    "sample.ext": rules.without_meaning("pictures are PNG, clips are MP4"),
    "sample.adapter_conditioning_scale": rules.without_meaning("there is no adapter"),
    "sample.refiner_start_at": rules.without_meaning("there is no refiner"),
    "sample.extra_values": rules.impossible("it is not there"),
    "sample.do_cfg_norm": rules.without_meaning("guidance is that of the model's pipeline"),
    **{f"sample.samples.*.{key}": _preview_picture for key in ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3")},
    "sample.samples.*.*": rules.impossible("all previews have the same settings: leave it out", (None,)),
}
