"""Translations of diffusion-pipe's settings to recipe keys."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from reelworks.annexes.imports import datasets, rules, tables, values
from reelworks.annexes.imports.diffusion_pipe import data, models, objective
from reelworks.annexes.imports.diffusion_pipe.models import DiffusionPipeModel
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.trainer import choose_model, find_model
from reelworks.models import registry

_BASES = {"float8": "float8", "float8_e4m3fn": "float8", "nf4": "nf4", "bfloat16": "bfloat16", "float32": "float32"}
_TABLE = tables.table("diffusion_pipe", "defaults")
FIRST: list[str] = _TABLE["first"]
DEFAULTS = tables.defaults(_TABLE["all"])


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
    if objective.trains_adapter(draft) and known is not None and draft.settings.get("adapter.type") == "lora":
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
