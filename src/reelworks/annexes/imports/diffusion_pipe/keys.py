"""Translations of diffusion-pipe's settings to recipe keys."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from reelworks.annexes.imports import datasets, rules, values
from reelworks.annexes.imports.diffusion_pipe import data, directories, models, objective, optimizer
from reelworks.annexes.imports.diffusion_pipe.models import DiffusionPipeModel
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule
from reelworks.annexes.imports.trainer import choose_model, find_model
from reelworks.core.toml_none import WORD as NONE
from reelworks.models import registry

_OF_RELEASE = rules.without_meaning("the autoencoder and text encoder of the release are taken")
_SPEED = rules.without_meaning("it only affects speed and memory")
_NO_VALIDATION = rules.without_meaning("there are no evaluation datasets here")
_DTYPES = {"bfloat16": "bfloat16", "float32": "float32"}
_SAVED = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}
_BASES = {
    "float8": "float8",
    "float8_e4m3fn": "float8",
    "nf4": "nf4",
    "bfloat16": "bfloat16",
    "float32": "float32",
}
DEFAULTS: dict[str, Any] = {
    "epochs": None,
    "gradient_clipping": 1.0,
    "warmup_steps": 0,
    "uncond_fraction": 0.0,
    "video_clip_mode": "single_beginning",
    "activation_checkpointing": False,
    "model.timestep_sample_method": "logit_normal",
    "model.sigmoid_scale": 1.0,
    "model.shift": None,
    "optimizer.type": "adamw",
    "optimizer.lr": None,
    "optimizer.betas": None,
    "optimizer.eps": None,
    "optimizer.weight_decay": None,
    "optimizer.gradient_release": False,
    "adapter.dropout": 0.0,
}
FIRST = (
    *("model.type", "adapter.type", "optimizer.type", "model.dtype", "model.transformer_dtype"),
    *("model.diffusion_model_dtype", "model.timestep_sample_method"),
    *("optimizer.lr", "model.unet_lr"),
)


def _model_type(value: Any, draft: ImportDraft) -> Outcome:
    preset = find_model(draft, "model.type", models.preset_names(draft.settings))
    known = models.former_model(draft.settings)
    remark = choose_model(draft, preset, _weights_of(draft, known))
    if draft.get("model.experts") is not None:
        names = " ".join(str(draft.settings.get(f"model.{key}", "")) for key in ("transformer_path", "ckpt_path"))
        low = re.search("(?i)low", names) or values.number(draft.settings.get("model.max_t", 1.0)) < 1
        remark += f", {draft.set('model.experts', 'low' if low else 'high')}"
    draft.set("train.ema_decay", 0.0, "there is no average")
    draft.set("train.loss_reduction", "sample", "all clips of a step count alike")
    draft.set("validation.split", 0.0, "no clips are kept back")
    if datasets.conditioning_of(draft).guidance != "embedded":
        draft.set("objective.caption_dropout", 0.0, "captions are not dropped")
    draft.set("encode.store", True, "latents and embeddings are stored ahead of training")
    draft.set("exports.weights", "model", "there is no average")
    draft.set("checkpoints.every_steps", None, "there is no such interval")
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


def _dtype(value: Any, draft: ImportDraft) -> Outcome:
    return rules.by_name("precision.compute", _DTYPES, "bfloat16", "products in float16 are not possible")(value, draft)


def _base(value: Any, draft: ImportDraft) -> Outcome:
    if not objective.trains_adapter(draft):
        return Fate.NOT_POSSIBLE, "only the frozen weights of a LoRA can be quantised: train one"
    if value in ("bfloat16", "float32") and value == draft.get("precision.compute"):
        return Fate.DEFAULT, "the dtype of products"
    return rules.by_name("lora.base", _BASES, "float8", "this storage is not supported")(value, draft)


def _merged(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    first, *others = value
    if not objective.trains_adapter(draft):
        return Fate.NOT_POSSIBLE, "only a LoRA is trained with another one: merge it into the weights"
    remark = draft.set("lora.training_adapter", values.text(first))
    if others:
        return Fate.NOT_POSSIBLE, f"one adapter is possible: {remark}; merge the others into the weights"
    return Fate.TAKEN, remark


def _adapter_type(value: Any, draft: ImportDraft) -> Outcome:
    if value not in ("lora", "lokr"):
        raise ValueError("no such adapter")
    draft.set("lora.targets", "blocks", "all linear layers of the blocks")
    return Fate.TAKEN, draft.set("lora.type", value)


def _rank(value: Any, draft: ImportDraft) -> Outcome:
    """Take the rank; alpha is the rank there, too."""
    return Fate.TAKEN, draft.set("lora.rank", values.whole(value))


def _dropout(value: Any, draft: ImportDraft) -> Outcome:
    if not objective.trains_adapter(draft) or not value:
        return Fate.DEFAULT, "off"
    return Fate.TAKEN, draft.set("lora.dropout", values.range_of(0, 0.99, values.number(value, 0, 1)))


def _factor(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("lora.type") != "lokr" or value == -1:
        return Fate.DEFAULT, "as even as possible"
    return Fate.TAKEN, draft.set("lora.decompose_factor", values.whole(value))


def _existing(value: Any, draft: ImportDraft) -> Outcome:
    """Take the file in a folder of a saved adapter, whose name is always the same."""
    if not value:
        return Fate.DEFAULT, "off"
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
    return rules.by_name("data.clip_start", names, "start", "clips from the middle are not possible")(value, draft)


def _swap(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if draft.get("lora.base") not in (None, "bfloat16", "float32"):
        return Fate.NOT_POSSIBLE, (
            f"weights in {draft.get('lora.base')} stay on the GPU; for less memory set lora.base = "
            '"bfloat16" and parallel.offload = true, which keeps all blocks in CPU memory'
        )
    return Fate.TAKEN, f"{draft.set('parallel.offload', True)}, which keeps all blocks in CPU memory"


def _checkpointing(value: Any, draft: ImportDraft) -> Outcome:
    if value == "unsloth":
        remark = draft.set("model.gradient_checkpointing", True)
        return Fate.NOT_POSSIBLE, f"{remark}: inputs of blocks stay on the GPU"
    return Fate.TAKEN, draft.set("model.gradient_checkpointing", values.flag(value))


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


def _tracker(value: Any, draft: ImportDraft) -> Outcome:
    if not values.flag(value):
        return Fate.DEFAULT, "off"
    return Fate.TAKEN, draft.set("logging.trackers", ["wandb"])


def _tracker_text(target: str) -> Rule:
    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if not value or draft.settings.get("monitoring.enable_wandb") is not True:
            return Fate.DEFAULT, "off"
        return Fate.TAKEN, draft.set(target, values.text(value))

    return handle


def _output(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("output", f"{values.text(value).rstrip('/')}/{draft.request.path.stem}")


def _processes(value: Any, draft: ImportDraft) -> Outcome:
    """Keep the size of a step with pipeline stages, which are none here: each GPU has micro-batches of its own."""
    gpus, stages = values.whole(value), values.whole(draft.settings.get("pipeline_stages", 1))
    if stages == 1:
        return Fate.NO_MEANING, f"start as many processes: torchrun --nproc-per-node {gpus}"
    steps = max(gpus // stages, 1) * values.whole(draft.settings.get("gradient_accumulation_steps", 1))
    return Fate.TAKEN, f"{draft.set('train.micro_batches_per_step', steps)}, for {gpus} GPUs of {stages} stages"


def _stages(value: Any, draft: ImportDraft) -> Outcome:
    if values.whole(value) == 1:
        return Fate.DEFAULT, "off"
    return Fate.NOT_POSSIBLE, (
        "a model is not split into stages; with several GPUs its weights are sharded (parallel.strategy), and each has "
        "micro-batches of its own: train.micro_batches_per_step keeps the size of a step"
    )


_EVALUATION = rules.impossible(
    "clips are held out of the datasets: set validation.split, and add this dataset's directories if they may be trained"
)


RULES: dict[str, Rule] = {
    "output_dir": _output,
    "dataset": rules.without_meaning("it is read too"),
    "eval_datasets": _EVALUATION,
    "eval_datasets.*": _EVALUATION,
    "max_steps": values.count("train.max_steps"),
    "pipeline_stages": _stages,
    "gradient_accumulation_steps": values.count("train.gradient_accumulation_steps"),
    "gradient_clipping": values.amount("train.max_grad_norm", none=NONE),
    "warmup_steps": values.count("train.warmup_steps", 0),
    "blocks_to_swap": _swap,
    "pseudo_huber_c": rules.impossible("the trainer does not read it; for a Huber loss set objective.loss"),
    **dict.fromkeys(("eval_every_n_epochs", "eval_every_n_steps", "eval_every_n_examples"), _NO_VALIDATION),
    **dict.fromkeys(("eval_before_first_step", "eval_gradient_accumulation_steps"), _NO_VALIDATION),
    **dict.fromkeys(("eval_micro_batch_size_per_gpu", "eval_image_micro_batch_size_per_gpu"), _NO_VALIDATION),
    **dict.fromkeys(("image_eval_micro_batch_size_per_gpu", "disable_block_swap_for_eval"), _NO_VALIDATION),
    "save_every_n_epochs": _save_epochs,
    "save_every_n_steps": values.count("checkpoints.every_steps"),
    "save_every_n_examples": _save_examples,
    "checkpoint_every_n_epochs": _checkpoint_epochs,
    "checkpoint_every_n_minutes": values.amount("checkpoints.every_minutes", 1e-3),
    "activation_checkpointing": _checkpointing,
    **dict.fromkeys(("reentrant_activation_checkpointing", "caching_batch_size", "map_num_proc"), _SPEED),
    **dict.fromkeys(("partition_method", "partition_split"), rules.without_meaning("a model is not split into stages")),
    "save_dtype": rules.by_name("exports.dtype", _SAVED, "bfloat16", "exports have no such dtype"),
    "compile": values.switch("train.compile"),
    **dict.fromkeys(("steps_per_print", "logging_steps"), rules.without_meaning("train.log_every is for the terminal")),
    "video_clip_mode": _clip_mode,
    "x_axis_examples": rules.without_meaning("curves have steps"),
    **dict.fromkeys(("resume_from_checkpoint", "regenerate_cache"), rules.without_meaning("a run resumes by itself")),
    "uncond_fraction": values.amount("objective.caption_dropout", 0, 1),
    "model.type": _model_type,
    "model.dtype": _dtype,
    **dict.fromkeys(("model.transformer_dtype", "model.diffusion_model_dtype"), _base),
    "model.guidance": rules.only((1, 1.0), "as here", "networks with guidance as an input are trained at 1"),
    "model.lumina_shift": rules.without_meaning("it belongs to another model"),
    **dict.fromkeys((f"model.{key}" for key in ("transformer_path", "diffusion_model", "single_file_path")), _weights),
    **dict.fromkeys((f"model.{key}" for key in ("checkpoint_path", "ckpt_path", "diffusers_path")), _weights),
    **dict.fromkeys((f"model.{key}" for key in ("vae", "vae_path", "llm_path", "clip_path", "t5_path")), _OF_RELEASE),
    **dict.fromkeys(
        (f"model.{key}" for key in ("byt5_path", "llama3_path", "text_encoder", "text_encoder_path")), _OF_RELEASE
    ),
    **dict.fromkeys(("model.text_encoders.*", "model.llama3_4bit", "model.text_encoder_nf4"), _OF_RELEASE),
    **dict.fromkeys(("model.text_encoder_fp8", "model.cache_text_embeddings"), _SPEED),
    "model.audio_vae": rules.impossible("sound is not trained by this model: --model minimax-h3-sound trains it"),
    **dict.fromkeys(("model.max_sequence_length", "model.max_llama3_sequence_length"), _OF_RELEASE),
    "model.bypass_guidance_embedding": rules.impossible("guidance stays an input of the network"),
    "model.unet_lr": values.amount("train.learning_rate", 1e-300),
    "model.llm_adapter_path": _OF_RELEASE,
    "model.multiscale_loss_weight": rules.impossible("the loss has one scale"),
    "model.merge_adapters": _merged,
    "adapter.type": _adapter_type,
    "adapter.rank": _rank,
    "adapter.alpha": rules.without_meaning("the trainer refuses it; alpha is the rank"),
    "adapter.dtype": rules.only(("float32",), "as here", "adapters are trained in float32"),
    "adapter.dropout": _dropout,
    "adapter.decompose_factor": _factor,
    "adapter.rank_dropout": rules.impossible("only inputs are dropped: set lora.dropout"),
    "adapter.exclude_modules": rules.impossible("name the layers to adapt: lora.targets"),
    "adapter.init_from_existing": _existing,
    "adapter.fuse_adapters": rules.impossible("merge it into the weights first"),
    "adapter.fuse_adapters.*": rules.impossible("merge it into the weights first"),
    "optimizer.gradient_release": rules.impossible("gradients are kept until the step: set parallel.offload = true"),
    "optimizer.stabilize": rules.impossible("gradients are clipped by train.max_grad_norm"),
    **dict.fromkeys(
        ("optimizer.muon", "optimizer.adamuon", "optimizer.normuon"), rules.without_meaning("optimizer.type tells")
    ),
    "optimizer.*": rules.impossible("the optimizer has no such setting here"),
    "monitoring.enable_wandb": _tracker,
    "monitoring.wandb_tracker_name": _tracker_text("logging.project"),
    "monitoring.wandb_run_name": _tracker_text("logging.name"),
    "monitoring.wandb_api_key": rules.without_meaning("`wandb login` or WANDB_API_KEY gives it"),
    "num_gpus": _processes,
    "directory.*.path": lambda value, draft: (
        Fate.TAKEN,
        datasets.place(draft, draft.numbers[0], values.text(value)),
    ),
    "directory.*.mask_path": values.place("dataset.*.loss_mask"),
    "directory.*.default_mask_file": rules.impossible("clips without a mask count as a whole"),
    "subsample_ratio": rules.impossible("use dataset.repeats below 1, which takes other clips in each epoch"),
    **dict.fromkeys(
        (
            *("deepspeed", "deepspeed_config", "config", "local_rank", "master_port", "reset_dataloader"),
            *("reset_optimizer", "reset_optimizer_params", "cache_only", "trust_cache", "i_know_what_i_am_doing"),
            *("dump_dataset", "test_sample", "num_nodes", "include", "exclude", "hostfile", "master_addr"),
        ),
        rules.without_meaning("an option of the command"),
    ),
    **optimizer.RULES,
    **objective.RULES,
    **directories.RULES,
}
