"""Translations of diffusion-pipe's settings to recipe keys."""

from __future__ import annotations

from itertools import starmap
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from reelworks.annexes.imports import datasets, densities, optimizers, rules, tables, values
from reelworks.annexes.imports.diffusion_pipe import data, models
from reelworks.annexes.imports.diffusion_pipe.models import DiffusionPipeModel
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule
from reelworks.annexes.imports.trainer import choose_model, find_model
from reelworks.core.toml_none import WORD as NONE
from reelworks.models import registry

_BASES = {"float8": "float8", "float8_e4m3fn": "float8", "nf4": "nf4", "bfloat16": "bfloat16", "float32": "float32"}
_TABLE = tables.table("diffusion_pipe", "defaults")
FIRST: list[str] = _TABLE["first"]
DEFAULTS = tables.defaults(_TABLE["all"])
_OPTIMIZERS = optimizers.of_trainer("diffusion_pipe")  # by their names in lower case; those of pytorch-optimizer, too
_ADAPTIVE = ("automagic", "genericoptim")
_LACKS = {"adafactor": ("betas", "eps"), "came": ("eps",)}
RATES_OF_TEXTS = ("model.text_encoder_1_lr", "model.text_encoder_2_lr")
_FLUX_LINE = (256, 0.5, 4096, 1.15)  # utils/common.py
_SAME_AREA = 1.1  # sizes of one area differ by that much where their sides are multiples of 16 or 32


def _model_type(value: Any, draft: ImportDraft) -> Outcome:
    preset = find_model(draft, "model.type", models.preset_names(draft.settings))
    known = models.former_model(draft.settings)
    remark = choose_model(draft, preset, _weights_of(draft, known))
    draft.set("train.ema_decay", 0.0, "there is no average")
    draft.set("train.loss_reduction", "sample", "all clips of a step count alike")
    draft.set("validation.split", 0.0, "no clips are kept back")
    if datasets.conditioning_of(draft).guidance != "embedded":
        draft.set("objective.caption_dropout", 0.0, "captions are not dropped")
    draft.set("encode.store", True, "latents and embeddings are stored ahead of training")
    draft.set("exports.weights", "model", "there is no average")
    draft.set("checkpoints.every_steps", None, "there is no such interval")
    if draft.get("model.experts") is not None:
        remark += f", {draft.set('model.experts', models.expert_of(draft.settings))}"
    if known is not None and known.fps is not None:
        draft.set(
            "data.fps", "model" if known.fps == registry.PRESETS[preset].fps else known.fps, "clips are brought to it"
        )
    if trains_adapter(draft) and known is not None and draft.settings.get("adapter.type") == "lora":
        draft.set("exports.formats", [known.format], "as its files are written")
    return Fate.TAKEN, remark


def _weights_of(draft: ImportDraft, known: DiffusionPipeModel | None) -> str | None:
    paths = (draft.settings.get(f"model.{key}") for key in (known.weights if known is not None else ()))
    weights = next((path for path in paths if isinstance(path, str) and path), None)
    # Folders of Wan have the names of its release, and not those of diffusers.
    in_folder = weights is not None and not weights.endswith((".safetensors", ".gguf"))
    return None if in_folder and draft.settings.get("model.type") == "wan" else weights


def _weights(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("model.weights") == value:
        return Fate.TAKEN, draft.set("model.weights", values.text(value))
    return Fate.NO_MEANING, f"the weights are those of model.weights = {draft.get('model.weights')!r}"


def _base(value: Any, draft: ImportDraft) -> Outcome:
    if value in ("bfloat16", "float32") and value == draft.get("precision.compute"):
        return Fate.DEFAULT, "the dtype of products"
    return rules.by_name(value, draft, "lora.base", _BASES, "float8", "this storage is not supported")


def _merged(value: Any, draft: ImportDraft) -> Outcome:
    first, *others = value
    remark = draft.set("lora.training_adapter", values.text(first))
    if others:
        return Fate.NOT_POSSIBLE, f"one adapter is possible: {remark}; merge the others into the weights"
    return Fate.TAKEN, remark


def _adapter_type(value: Any, draft: ImportDraft) -> Outcome:
    if value not in ("lora", "lokr"):
        raise ValueError("no such adapter")
    draft.set("lora.targets", "blocks", "all linear layers of the blocks")
    return Fate.TAKEN, draft.set("lora.type", value)


def _existing(value: Any, draft: ImportDraft) -> Outcome:
    """Take the file in a folder of a saved adapter, whose name is always the same."""
    path = values.text(value)
    if not path.endswith(".safetensors"):
        kind = PureWindowsPath if "\\" in path else PurePosixPath
        path = str(kind(path) / ("lora" if draft.get("model.name") == "sdxl" else "adapter_model")) + ".safetensors"
    return Fate.TAKEN, draft.set("lora.weights", path)


def _clip_mode(value: Any, draft: ImportDraft) -> Outcome:
    known = models.former_model(draft.settings)
    if known is None or known.fps is None:
        return Fate.NO_MEANING, "this model takes pictures"
    names = {"single_beginning": "start"}
    return rules.by_name(value, draft, "data.clip_start", names, "start", "clips from the middle are not possible")


def _swap(value: Any, draft: ImportDraft) -> Outcome:
    return datasets.offload(draft, is_quantised=draft.get("lora.base") not in (None, "bfloat16", "float32"))


def _save_epochs(value: Any, draft: ImportDraft) -> Outcome:
    every = values.whole(value)
    remark = draft.set("checkpoints.at_epoch_end", True)
    if every == 1:
        return Fate.TAKEN, remark
    if any(key.startswith("checkpoint_every") for key in draft.settings.values):
        return Fate.NOT_POSSIBLE, f"weights are written with every checkpoint: {remark}"
    return Fate.TAKEN, f"{remark}, {draft.set('exports.every_n_saves', every)}"


def _save_examples(value: Any, draft: ImportDraft) -> Outcome:
    given = draft.settings.get("micro_batch_size_per_gpu", 1)
    size = data.batch_size(given, values.MOST) * values.whole(draft.settings.get("gradient_accumulation_steps", 1))
    steps = max(values.whole(value) // size, 1)
    return Fate.TAKEN, f"{draft.set('checkpoints.every_steps', steps)}, with one process"


def _checkpoint_epochs(value: Any, draft: ImportDraft) -> Outcome:
    every, remark = values.whole(value), draft.set("checkpoints.at_epoch_end", True)
    return (Fate.TAKEN, remark) if every == 1 else (Fate.NOT_POSSIBLE, f"{remark}: there is one after each epoch")


def _processes(value: Any, draft: ImportDraft) -> Outcome:
    """Keep the size of a step with pipeline stages, which are none here: each GPU has micro-batches of its own."""
    gpus, stages = values.whole(value), values.whole(draft.settings.get("pipeline_stages", 1))
    if stages == 1:
        return Fate.NO_MEANING, f"start as many processes: torchrun --nproc-per-node {gpus}"
    steps = max(gpus // stages, 1) * values.whole(draft.settings.get("gradient_accumulation_steps", 1))
    return Fate.TAKEN, f"{draft.set('train.micro_batches_per_step', steps)}, for {gpus} GPUs of {stages} stages"


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


def trains_adapter(draft: ImportDraft) -> bool:
    """Whether the config trains a LoRA or LoKr, and not all weights."""
    return bool(draft.settings.below("adapter"))


def _shift(value: Any, draft: ImportDraft) -> Outcome:
    if value:
        return Fate.TAKEN, draft.set("objective.timestep_shift", values.number(value, 1e-3))
    for key in ("flux_shift", "lumina_shift"):
        if draft.settings.get(f"model.{key}"):
            return Fate.NO_MEANING, f"model.{key} decides"
    return Fate.TAKEN, draft.set("objective.timestep_shift", NONE)


def _flux_shift(value: Any, draft: ImportDraft) -> Outcome:
    sides = sorted({side for each in data.directories(draft.settings) for side in each.sides})
    if not sides:
        return Fate.TO_FILL_IN, "set objective.timestep_shift to that of the size: 1.9 at 512, 3.2 at 1024"
    scale = datasets.geometry_of(draft).stride[1] / 8  # the size there is that of the latents
    return densities.shift_by_size(draft, _FLUX_LINE, [(side / scale) ** 2 for side in sides])


def _bound(value: Any, draft: ImportDraft) -> Outcome:
    bounds = [
        values.number(draft.settings.get(f"model.{key}", at), 0, 1) for key, at in (("min_t", 0.0), ("max_t", 1.0))
    ]
    if draft.get("model.experts") is not None:
        if sorted(bounds) in ([0.0, 1.0], _range_of_expert(draft)):
            return Fate.DEFAULT, f"model.experts = {draft.get('model.experts')!r} trains these"
        return Fate.NOT_POSSIBLE, f"model.experts = {draft.get('model.experts')!r} trains {_range_of_expert(draft)}"
    if bounds[0] >= bounds[1]:
        raise ValueError("no range")
    return Fate.TAKEN, draft.set("objective.timestep_range", [round(1000 * bound, 6) for bound in bounds])


def _range_of_expert(draft: ImportDraft) -> list[float]:
    switch = (registry.PRESETS[draft.get("model.name")].switch_timestep or 0.0) / 1000
    return [switch, 1.0] if draft.get("model.experts") == "high" else [0.0, switch]


def _cfg(value: Any, draft: ImportDraft) -> Outcome:
    scale = values.number(value, 0)
    if scale <= 1:
        return Fate.DEFAULT, "off"
    if not trains_adapter(draft):
        return Fate.NOT_POSSIBLE, "targets are guided only for a LoRA"
    remark = draft.set("objective.target_guidance_scale", scale)
    return Fate.TAKEN, f"{remark}; the part without caption is predicted by the base, and not by the LoRA"


def _control(value: Any, draft: ImportDraft) -> Outcome:
    return datasets.set_companions(draft, draft.numbers[0], [values.text(value)], "pictures to edit")


def _prefix(value: Any, draft: ImportDraft, number: int) -> str:
    if draft.settings.get("model.type") == "lumina_2" and str(value).rstrip().endswith("<Prompt Start>"):
        return "captions stand behind the instruction of the release's pipeline"
    form = datasets.as_text(value)
    return draft.set(f"dataset.{number}.caption", f"{form}{{text}}") if form else ""


def _shuffle(value: Any, draft: ImportDraft, number: int) -> str:
    """Shuffle tags; their number of orders repeats the clips."""
    return draft.set(f"dataset.{number}.shuffle_tags", True) if value else ""


def _delimiter(value: Any, draft: ImportDraft, number: int) -> str:
    separator = values.text(value)
    if draft.get(f"dataset.{number}.shuffle_tags") is not True:
        return ""
    return draft.set(f"dataset.{number}.tag_separator", separator.strip() or separator)


def _skip(value: Any, draft: ImportDraft, number: int) -> str:
    return "" if values.flag(value) else draft.set(f"dataset.{number}.missing_caption", "")


def _frames(value: Any, draft: ImportDraft) -> Outcome:
    lengths = draft.settings.each("directory", "frame_buckets")
    if draft.key.startswith("directory.") and any(each != value for each in lengths) and len(value) > 2:
        return Fate.NOT_POSSIBLE, "[[bucket]] num_frames: videos take longer lengths of other directories too"
    return Fate.TAKEN, "[[bucket]] num_frames, and dataset.lengths where directories differ"


def _in_buckets(value: Any, draft: ImportDraft) -> Outcome:
    """Tell what becomes of sizes, which all datasets share here; the entries are made of all settings together."""
    if draft.key.startswith("directory.") and draft.settings.count("directory") > 1:
        return Fate.NOT_POSSIBLE, "all datasets share the [[bucket]] entries, which have these sizes too"
    return Fate.TAKEN, "[[bucket]] entries and buckets.aspect_ratios"


def _sizes(value: Any, draft: ImportDraft) -> Outcome:
    """Tell where fixed sizes become others: an entry has one area for all shapes of a length, and the largest comes first."""
    areas: dict[int, list[int]] = {}
    for width, height, frames in starmap(data.fixed_size, value):
        areas.setdefault(frames, []).append(width * height)
    if sum(frames > 1 for frames in areas) < 2 and all(max(each) <= _SAME_AREA * min(each) for each in areas.values()):
        return _in_buckets(value, draft)
    return Fate.NOT_POSSIBLE, (
        "[[bucket]] entries with the mean area of each length: a clip takes the largest area that it fills, or each that "
        "dataset.resolutions names, and there the size of the nearest shape"
    )


def _inherited(value: Any, draft: ImportDraft, set_one: str) -> Outcome:
    """Take a setting of a directory, which all directories without it take from the top of the file."""
    name = draft.key.rpartition(".")[2]
    others = enumerate(draft.settings.each("directory", name))
    numbers = draft.numbers[:1] or [number for number, own in others if own is None]
    remarks = ", ".join(filter(None, (_SETTERS[set_one](value, draft, number) for number in numbers)))
    return (Fate.TAKEN, remarks) if remarks else (Fate.DEFAULT, "as here")


_SETTERS = {"prefix": _prefix, "shuffle": _shuffle, "delimiter": _delimiter, "skip": _skip}
