"""Rules of the settings of training that sd-scripts and musubi-tuner share.

Both count optimizer steps, each of `gradient_accumulation_steps` batches on each process, as `train.max_steps` does here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from reelworks.annexes.imports import rates, rules
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.kohya import previews
from reelworks.annexes.imports.kohya.values import count, is_on, number, number_of, switch, text, whole_of
from reelworks.annexes.imports.rules import Fate, ImportedKey, Outcome, Rule
from reelworks.core.toml_none import WORD as NONE

_OPTIMIZERS = {
    "adamw": "adamw",
    "pagedadamw": "adamw",
    "pagedadamw32bit": "adamw",
    "adamw8bit": "adamw8bit",
    "pagedadamw8bit": "adamw8bit",
    "adafactor": "adafactor",
    "prodigy": "prodigy",
    "came": "came",
    "muon": "muon",
    "adamwschedulefree": "schedulefree",
}
# Optimizers that search the rate by themselves, or average in place of a schedule, and the nearest one here.
_NEAREST = (("prodigy", "prodigy"), ("dadapt", "prodigy"), ("schedulefree", "schedulefree"), ("8bit", "adamw8bit"))
_WITHOUT_BETAS = ("adafactor",)
_ADAMS = ("adamw", "adamw8bit")
_SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
}
_PRECISIONS = {"bf16": "bfloat16", "no": "float32"}
_FLOAT8 = ("fp8_base", "fp8_scaled", "fp8_base_unet")
_SAVED_AS = {"bf16": "bfloat16", "fp16": "float16", "float": "float32", "fp32": "float32"}
_SPEED = "it affects speed or memory only"
_ATTENTION = "attention is torch's own: model.attention chooses another kernel"
_HUB = "nothing is uploaded while training: upload the files of exports/"
_HEADER = "the header of exported files tells what they are"
_RESUMES = "the same command resumes, and every checkpoint has the whole state"


def steps_of(draft: ImportDraft) -> int | None:
    """Return the number of steps of the run, if it is not given in epochs."""
    if draft.settings.get("max_train_epochs") is not None:
        return None
    try:
        return max(whole_of(draft.settings.get("max_train_steps", 1600)), 1)
    except (TypeError, ValueError):
        return None


def _steps(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("max_train_epochs") is not None:
        return Fate.NO_MEANING, "max_train_epochs decides"
    return number("train.max_steps", 1, whole=True)(value, draft)


def optimizer_of(draft: ImportDraft) -> str:
    """Return the name of the trainer's optimizer in lower case, without its package."""
    name = draft.settings.get("optimizer_type")
    if not isinstance(name, str) or not name:
        old = "lion" if is_on(draft.settings.get("use_lion_optimizer")) else "adamw"
        return "adamw8bit" if is_on(draft.settings.get("use_8bit_adam")) else old
    return name.rpartition(".")[2].lower().replace("_", "")


def _is_absolute(draft: ImportDraft) -> bool:
    """Whether an Adafactor has updates of a size of their own, which do not grow with the weights."""
    return draft.settings.get("optimizer_args.scale_parameter") in (False, "False", "false")


def _optimizer(value: Any, draft: ImportDraft) -> Outcome:
    name = optimizer_of(draft)
    if name == "adafactor" and _is_absolute(draft):
        chosen, why = "adamw8bit", "Adafactor's rate multiplies the size of the weights here, as with scale_parameter"
    elif name in _OPTIMIZERS:
        chosen, why = _OPTIMIZERS[name], ""
    else:
        chosen = next((ours for part, ours in _NEAREST if part in name), "adamw")
        why = "this optimizer is not there"
    remark = draft.set("train.optimizer", chosen)
    if chosen not in _WITHOUT_BETAS:
        draft.set("train.betas", [0.9, 0.999], f"default of {name}")
    if chosen != "adafactor":
        draft.set("train.eps", 1e-8, f"default of {name}")
    draft.set("train.weight_decay", 0.01 if chosen in _ADAMS and not why else 0.0, f"default of {name}")
    return (Fate.NOT_POSSIBLE, f"{why}; {remark} replaces it") if why else (Fate.TAKEN, remark)


def _rate(value: Any, draft: ImportDraft) -> Outcome:
    rate, name = number_of(value), optimizer_of(draft)
    if draft.key == "learning_rate" and draft.settings.get("unet_lr") is not None:
        return Fate.NO_MEANING, "unet_lr decides"
    if (
        name == "adafactor"
        and not _is_absolute(draft)
        and draft.settings.get("optimizer_args.relative_step")
        not in (
            False,
            "False",
            "false",
        )
    ):
        return Fate.NO_MEANING, f"relative_step finds the rate: {draft.set('train.learning_rate', 0.01)} bounds it"
    if draft.get("train.optimizer") == "prodigy" and rate < 0.01:
        return Fate.NOT_POSSIBLE, f"this optimizer multiplies the rate that it finds by it; {_factor(draft)}"
    return number("train.learning_rate", above=True)(value, draft)


def _factor(draft: ImportDraft) -> str:
    return f"{draft.set('train.learning_rate', 1.0)} replaces it"


def _betas(value: Any, draft: ImportDraft) -> Outcome:
    values = value if isinstance(value, list) else re.findall(r"[\d.eE+-]+", str(value))
    betas = [number_of(each) for each in values]
    if draft.get("train.optimizer") in _WITHOUT_BETAS:
        return Fate.NO_MEANING, "Adafactor has none"
    if len(betas) < 2 or not all(0 <= beta < 1 for beta in betas):
        return Fate.NOT_POSSIBLE, "betas are two numbers from 0 to 1"
    remark = draft.set("train.betas", betas[:2])
    return (Fate.TAKEN, remark) if len(betas) == 2 else (Fate.TAKEN, f"{remark}; the third has its default")


def _schedule(value: Any, draft: ImportDraft) -> Outcome:
    name = str(value).partition(":")[0]
    if draft.get("train.optimizer") == "schedulefree":
        return Fate.NO_MEANING, "the rate of this optimizer is constant"
    cycles = draft.settings.get("lr_scheduler_num_cycles", 1)
    power = draft.settings.get("lr_scheduler_power", 1)
    if name == "cosine_with_restarts" and cycles in (1, "1", None):
        name = "cosine"
    if name == "polynomial" and power in (1, 1.0, None):
        name = "linear"
    if name == "adafactor":
        return Fate.NO_MEANING, "the optimizer finds the rate"
    known = _SCHEDULES.get(name)
    remark = draft.set("train.learning_rate_schedule", known or _nearest_schedule(name))
    if name == "constant":
        draft.remove("train.warmup_steps")
    if known is None:
        return Fate.NOT_POSSIBLE, f"this schedule is not there; {remark} replaces it"
    return Fate.TAKEN, remark


def _nearest_schedule(name: str) -> str:
    if name.startswith("cosine") or name == "rex":
        return "cosine"
    return "linear" if name == "polynomial" else "constant"


def _warmup(value: Any, draft: ImportDraft) -> Outcome:
    """Convert a number of steps, or a share of all; a constant rate without warm-up refuses any."""
    steps = number_of(value)
    if not steps:
        return Fate.DEFAULT, "no warm-up"
    if draft.settings.get("lr_scheduler", "constant") == "constant":
        return Fate.NO_MEANING, "a constant rate has no warm-up there: constant_with_warmup has one"
    if steps >= 1:
        return number("train.warmup_steps", 0, whole=True)(round(steps), draft)
    if (of := steps_of(draft)) is not None:
        return Fate.TAKEN, f"{draft.set('train.warmup_steps', int(steps * of))}, a share of {of}"
    return Fate.TAKEN, rates.share(draft, steps)


def _least_rate(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("lr_scheduler") not in ("cosine_with_min_lr", "warmup_stable_decay"):
        return Fate.NO_MEANING, "this schedule falls to 0"
    rate = number_of(draft.get("train.learning_rate", 1e-4)) * min(max(number_of(value), 0.0), 1.0)
    if draft.get("train.learning_rate_schedule") == "constant":
        return Fate.NOT_POSSIBLE, "a constant rate does not fall"
    return Fate.TAKEN, draft.set("train.final_learning_rate", rate)


def _precision(value: Any, draft: ImportDraft) -> Outcome:
    return rules.by_name("precision.compute", _PRECISIONS, "bfloat16", "float16 is not there")(value, draft)


def _accelerate_precision(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("mixed_precision") is not None:
        return Fate.NO_MEANING, "mixed_precision decides"
    return _precision(value, draft)


def _output(value: Any, draft: ImportDraft) -> Outcome:
    name = draft.settings.get("output_name")
    folder = str(value).rstrip("/\\") or "."
    return Fate.TAKEN, draft.set("output", f"{folder}/{name}" if isinstance(name, str) and name else folder)


def _output_name(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("output_dir") is None and value:
        return Fate.TAKEN, draft.set("output", f"runs/{value}")
    return Fate.TAKEN, "the run folder has this name"


def _save_epochs(value: Any, draft: ImportDraft) -> Outcome:
    epochs = whole_of(value)
    if epochs < 1:
        return Fate.DEFAULT, "off"
    remark = draft.set("checkpoints.at_epoch_end", True)
    if draft.settings.get("save_every_n_steps") in (None, 0):
        draft.set("checkpoints.every_steps", None)
        if epochs > 1:
            remark += f", {draft.set('exports.every_n_saves', epochs)}"
    return Fate.TAKEN, remark


def _kept_steps(target: str) -> Rule:
    """Convert a number of steps for which files stay to a number of files."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        every = whole_of(draft.settings.get("save_every_n_steps") or 1)
        return Fate.TAKEN, draft.set(target, max(math.ceil(whole_of(value) / max(every, 1)), 1))

    return handle


def _tracker(value: Any, draft: ImportDraft) -> Outcome:
    if value in ("wandb", "all"):
        return Fate.TAKEN, draft.set("logging.trackers", ["wandb"])
    return Fate.DEFAULT, "TensorBoard is always written"


def _of_tracker(target: str) -> Rule:
    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if draft.settings.get("log_with") not in ("wandb", "all"):
            return Fate.NO_MEANING, "there is no tracker beside TensorBoard"
        return text(target)(value, draft)

    return handle


def _processes(value: Any, draft: ImportDraft) -> Outcome:
    if whole_of(value) <= 1:
        return Fate.DEFAULT, "one process"
    return Fate.NO_MEANING, f"start `torchrun --standalone --nproc-per-node {value} -m reelworks train`"


def _swap(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if draft.get("lora.type") is not None and any(is_on(draft.settings.get(key)) for key in _FLOAT8):
        return (
            Fate.NOT_POSSIBLE,
            'a base in float8 stays on the GPU: lora.base = "bfloat16" with parallel.offload moves it',
        )
    return Fate.TAKEN, f"{draft.set('parallel.offload', True)}, which keeps all blocks in CPU memory"


def float8(value: Any, draft: ImportDraft) -> Outcome:
    """Store the base of a LoRA in 8 bits."""
    if not is_on(value):
        return Fate.DEFAULT, "off"
    if draft.get("lora.type") is None:
        return Fate.NOT_POSSIBLE, "weights that are trained are not stored in 8 bits"
    return Fate.TAKEN, draft.set("lora.base", "float8")


def _licence(value: Any, draft: ImportDraft) -> Outcome:
    return text("model.license")(value, draft)


def _dataset_config(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "not set"
    if any(key.startswith("datasets.") for key in draft.settings.values):
        return Fate.NO_MEANING, "it is read too"
    return Fate.UNREAD, "this file is not there, or is no dataset config: give it too, or --data"


def impossible(what_to_do: str) -> Rule:
    """Report a feature that is not there, with what to do instead, unless it is off in any spelling."""
    return rules.impossible(what_to_do, (None, False, 0, "", [], "false", "False", "none", "None"))


RULES: Mapping[str, Rule] = {
    "optimizer_type": _optimizer,
    "use_8bit_adam": rules.without_meaning("train.optimizer has it"),
    "use_lion_optimizer": rules.without_meaning("train.optimizer has it"),
    "optimizer_args.weight_decay": number("train.weight_decay"),
    "optimizer_args.betas": _betas,
    "optimizer_args.eps": lambda value, draft: (
        (Fate.NO_MEANING, "Adafactor has its own")
        if draft.get("train.optimizer") == "adafactor" or isinstance(value, list)
        else number("train.eps", above=True)(value, draft)
    ),
    "optimizer_args.scale_parameter": rules.without_meaning("train.optimizer has it"),
    "optimizer_args.relative_step": rules.without_meaning("train.learning_rate has it"),
    "optimizer_args.warmup_init": impossible("train.warmup_steps warms up"),
    "optimizer_args.*": impossible("this optimizer has no such setting here"),
    "learning_rate": _rate,
    "lr_scheduler": _schedule,
    "lr_scheduler_type": impossible("this schedule is not there: train.learning_rate_schedule"),
    "lr_scheduler_args.*": impossible("schedules have no such setting here"),
    "lr_warmup_steps": _warmup,
    "lr_decay_steps": impossible("a rate falls from the warm-up to the end here"),
    "lr_scheduler_num_cycles": rules.only((1, None), "one fall", "a rate falls once here"),
    "lr_scheduler_power": rules.only((1, None), "a straight line", "only straight lines and cosines are there"),
    "lr_scheduler_timescale": impossible("there is no such schedule"),
    "lr_scheduler_min_lr_ratio": _least_rate,
    "max_grad_norm": lambda value, draft: (
        (Fate.TAKEN, draft.set("train.max_grad_norm", NONE))
        if not number_of(value)
        else number("train.max_grad_norm", above=True)(value, draft)
    ),
    "max_train_steps": _steps,
    "max_train_epochs": lambda value, draft: (
        (Fate.DEFAULT, "not set") if value is None else number("train.max_epochs", 1, whole=True)(value, draft)
    ),
    "gradient_accumulation_steps": number("train.gradient_accumulation_steps", 1, whole=True),
    "gradient_checkpointing": switch("model.gradient_checkpointing"),
    "cpu_offload_checkpointing": rules.without_meaning(_SPEED),
    "gradient_checkpointing_cpu_offload": rules.without_meaning(_SPEED),
    "mixed_precision": _precision,
    "accelerate.mixed_precision": _accelerate_precision,
    "full_fp16": impossible("trained weights are kept in float32"),
    "full_bf16": impossible("trained weights are kept in float32"),
    "fp8_base": float8,
    "fp8_scaled": float8,
    "blocks_to_swap": _swap,
    "block_swap_h2d_only": rules.without_meaning(_SPEED),
    "block_swap_ring_size": rules.without_meaning(_SPEED),
    "block_swap_optimizer_patch_params": rules.without_meaning(_SPEED),
    "use_pinned_memory_for_block_swap": rules.without_meaning(_SPEED),
    "img_in_txt_in_offloading": rules.without_meaning(_SPEED),
    "disable_numpy_memmap": rules.without_meaning(_SPEED),
    "disable_mmap_load_safetensors": rules.without_meaning(_SPEED),
    "mem_eff_save": rules.without_meaning(_SPEED),
    "fused_backward_pass": rules.without_meaning(_SPEED),
    "seed": number("seed", 0, 2**62, whole=True),
    "max_data_loader_n_workers": number("data.num_workers", 0, 64, whole=True),
    "persistent_data_loader_workers": rules.without_meaning("decoding processes live as long as the run"),
    **dict.fromkeys(("sdpa", "xformers", "split_attn", "mem_eff_attn", "attn_mode"), rules.without_meaning(_ATTENTION)),
    **dict.fromkeys(("flash_attn", "flash3", "sage_attn"), rules.without_meaning(_ATTENTION)),
    "torch_compile": switch("train.compile"),
    "compile": switch("train.compile"),
    "dynamo_backend": rules.without_meaning("train.compile and train.compile_backend decide"),
    "dynamo_*": rules.without_meaning(_SPEED),
    **dict.fromkeys(("dynamo_mode", "dynamo_fullgraph", "dynamo_dynamic"), rules.without_meaning(_SPEED)),
    **dict.fromkeys(
        ("compile_backend", "compile_mode", "compile_dynamic", "compile_fullgraph", "compile_cache_size_limit"),
        rules.without_meaning(_SPEED),
    ),
    **dict.fromkeys(("cuda_allow_tf32", "cuda_cudnn_benchmark"), rules.without_meaning(_SPEED)),
    "ddp_timeout": rules.without_meaning("parallel.step_seconds and parallel.join_seconds are limits of waiting"),
    **dict.fromkeys(("ddp_gradient_as_bucket_view", "ddp_static_graph"), rules.without_meaning(_SPEED)),
    "output_dir": _output,
    "output_name": _output_name,
    "save_precision": rules.by_name("exports.dtype", _SAVED_AS, "float32", "this dtype is not supported"),
    "save_model_as": rules.only((None, "safetensors"), "exports are .safetensors", "exports are .safetensors"),
    "save_every_n_epochs": _save_epochs,
    "save_every_n_steps": count("checkpoints.every_steps"),
    "save_last_n_epochs": count("exports.keep_last"),
    "save_last_n_epochs_state": count("checkpoints.keep_last"),
    "save_last_n_steps": _kept_steps("exports.keep_last"),
    "save_last_n_steps_state": _kept_steps("checkpoints.keep_last"),
    "save_state": rules.without_meaning(_RESUMES),
    "save_state_on_train_end": rules.without_meaning(_RESUMES),
    "resume": rules.without_meaning(_RESUMES),
    "logging_dir": rules.without_meaning("logs are in the run folder"),
    "log_with": _tracker,
    "log_prefix": rules.without_meaning("logs are in the run folder"),
    "log_tracker_name": _of_tracker("logging.project"),
    "wandb_run_name": _of_tracker("logging.name"),
    "wandb_api_key": rules.without_meaning("`wandb login` or WANDB_API_KEY has it; recipes hold no keys"),
    "log_tracker_config": rules.without_meaning("logging has the settings of trackers"),
    "log_config": rules.without_meaning("a run keeps its recipe"),
    **dict.fromkeys(
        ("huggingface_repo_id", "huggingface_repo_type", "huggingface_path_in_repo", "huggingface_repo_visibility"),
        impossible(_HUB),
    ),
    **dict.fromkeys(
        ("save_state_to_huggingface", "resume_from_huggingface", "async_upload"),
        impossible("checkpoints.mirror keeps a copy elsewhere"),
    ),
    "huggingface_token": rules.without_meaning("HF_TOKEN or `hf auth login` has it; recipes hold no keys"),
    "no_metadata": rules.without_meaning(_HEADER),
    "training_comment": rules.without_meaning(_HEADER),
    "metadata_license": _licence,
    **dict.fromkeys(
        (
            *("metadata_title", "metadata_author", "metadata_description", "metadata_tags", "metadata_reso"),
            *("metadata_arch", "metadata_usage_hint", "metadata_thumbnail", "metadata_merged_from"),
            *("metadata_trigger_phrase", "metadata_preprocessor", "metadata_is_negative_embedding"),
        ),
        rules.without_meaning(_HEADER),
    ),
    "sample_prompts": previews.prompts,
    "sample_every_n_steps": count("samples.every_steps"),
    "sample_every_n_epochs": previews.every_epochs,
    "sample_at_first": impossible("previews begin after the first steps: `reelworks generate` shows the base"),
    "sample_sampler": impossible("previews use the sampler of the model"),
    **dict.fromkeys(
        ("network_args", "optimizer_args", "lr_scheduler_args"), rules.without_meaning("there is none in it")
    ),
    "network_module": rules.without_meaning("this script trains all weights"),
    "config_file": rules.without_meaning("it is read"),
    "dataset_config": _dataset_config,
    "accelerate.num_processes": _processes,
    "accelerate.num_machines": rules.only((None, 1), "one machine", "start `torchrun` on each machine"),
    "accelerate.*": rules.without_meaning("torchrun starts the processes"),
    "preparation.*": rules.without_meaning(
        "latents and embeddings are stored by the run itself, or `reelworks encode`"
    ),
    "another run.*": impossible("a recipe is one run: import the other with --command"),
}

DEFAULTS: Mapping[str, Any] = {
    "optimizer_type": "AdamW",
    "learning_rate": 2e-6,
    "max_train_steps": 1600,
    "save_precision": "float",
}

FIRST = (
    "optimizer_type",
    "learning_rate",
    "unet_lr",
    "output_dir",
    "lr_warmup_steps",
    "lr_scheduler",
    "network_module",
    "timestep_sampling",
    "weighting_scheme",
)


WITHOUT_ARGUMENTS = ImportedKey(
    "command",
    None,
    Fate.TO_FILL_IN,
    "the dataset alone is given: a LoRA with the defaults here is trained; give --command for learning rate and network",
)


def finish(draft: ImportDraft) -> None:
    """Set what these trainers do not have, but a recipe has by default."""
    draft.set("train.ema_decay", 0.0, "no average of the weights there")
    draft.set("exports.weights", "model", "no average of the weights there")
    if draft.get("validation.split") is None:
        draft.set("validation.split", 0.0, "no validation there")
    if draft.get("train.max_steps") is None and draft.get("train.max_epochs") is None:
        draft.set("train.max_steps", DEFAULTS["max_train_steps"], "default of max_train_steps")
    if draft.get("train.learning_rate_schedule", "constant") == "constant":
        draft.remove("train.final_learning_rate")
    if not draft.get("samples.prompts"):
        draft.remove("samples.every_steps")
