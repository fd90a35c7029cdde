"""Translations of OneTrainer's settings to recipe keys, apart from those of concepts and samples."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import datasets, rules, values
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.onetrainer import adapter, models, objective, parts, rates
from reelworks.annexes.imports.rules import Fate, Outcome, Rule
from reelworks.annexes.imports.trainer import choose_model, find_model
from reelworks.core.errors import UserError
from reelworks.core.toml_none import WORD as NONE
from reelworks.models import registry

_WINDOW = rules.without_meaning("a setting of the window")
_SPEED = rules.without_meaning("it only affects speed and memory")
_DTYPES = {"BFLOAT_16": "bfloat16", "FLOAT_32": "float32", "TFLOAT_32": "float32"}
_EXPORTED = {"BFLOAT_16": "bfloat16", "FLOAT_16": "float16", "FLOAT_32": "float32"}
_MINUTES = {"SECOND": 1 / 60, "MINUTE": 1.0, "HOUR": 60.0}
_DEFAULTS: dict[str, Any] = {
    "training_method": "FINE_TUNE",
    "model_type": "STABLE_DIFFUSION_15",
    "learning_rate": 3e-6,
    "learning_rate_warmup_steps": 200.0,
    "epochs": 100,
    "gradient_accumulation_steps": 1,
    "ema": "OFF",
    "train_dtype": "FLOAT_16",
    "output_dtype": "FLOAT_32",
    "clip_grad_norm": 1.0,
    "timestep_distribution": "UNIFORM",
    "timestep_shift": 1.0,
    "latent_caching": True,
    "backup_after": 30,
    "save_every": 0,
    "optimizer.optimizer": "ADAMW",
    "optimizer.beta1": None,
    "optimizer.eps": None,
    "optimizer.weight_decay": None,
}
_OF_LORA: dict[str, Any] = {"peft_type": "LORA", "lora_rank": 16, "lora_alpha": 1.0, "layer_filter": None}
FIRST = (
    *("model_type", "training_method", "optimizer.optimizer", "train_dtype", "peft_type", "learning_rate"),
    *("unet.learning_rate", "transformer.learning_rate", "prior.learning_rate"),
)


def defaults(draft: ImportDraft) -> dict[str, Any]:
    """Return the defaults that differ here, of the parts of the model and of what is trained."""
    model = parts.model_of(draft)
    found = _DEFAULTS | {f"{part}.train": True for part in model.texts}
    found |= {f"{model.part}.gradient_checkpointing": True, f"{model.part}.weight_dtype": "FLOAT_32"}
    found |= _OF_LORA if parts.trains_adapter(draft) else {}
    return found | ({"sample_after": 10} if draft.settings.count("samples") else {})


def _model_type(value: Any, draft: ImportDraft) -> Outcome:
    texts = [str(draft.settings.get(key) or "") for key in ("base_model_name", "transformer.model_name")]
    preset = find_model(draft, "model_type", models.names_of(str(value), *texts))
    remark = choose_model(draft, preset, _weights_of(preset, *texts))
    draft.set("train.loss_reduction", "sample", "all clips of a step count alike")
    draft.set("validation.split", 0.0, "no clips are kept back")
    if datasets.conditioning_of(draft).guidance != "embedded":
        draft.set("objective.caption_dropout", 0.0, "captions are not dropped")
    draft.set("checkpoints.every_steps", None, "there is no such interval")
    return Fate.TAKEN, remark


def _weights_of(preset: str, base: str, transformer: str) -> str | None:
    """Return a file or folder other than the published one; addresses of files must be downloaded first."""
    if transformer and "://" not in transformer:
        return transformer
    known = registry.release_of(preset).weights or ""
    return base if base and base != known and registry.find(base) != preset and "://" not in base else None


def _method(value: Any, draft: ImportDraft) -> Outcome:
    if value == "LORA":
        return Fate.TAKEN, "[lora]"
    if value == "FINE_TUNE":
        return Fate.TAKEN, "all weights are trained: there is no [lora]"
    raise UserError(
        "embeddings are not trained here" if value == "EMBEDDING" else "this kind of training is not possible here",
        code="training-not-possible",
        field="training_method",
        value=value,
        remedy='train a LoRA: set training_method to "LORA"',
    )


def _dtype(value: Any, draft: ImportDraft) -> Outcome:
    return rules.by_name("precision.compute", _DTYPES, "bfloat16", "products in this dtype are not possible")(
        value, draft
    )


def _caching(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("encode.store", values.flag(value))


def _every(draft: ImportDraft, name: str) -> tuple[float, str]:
    default = {"backup_after": 30, "save_every": 0, "sample_after": 10}[name]
    unit = {"backup_after": "MINUTE", "save_every": "NEVER", "sample_after": "MINUTE"}[name]
    return values.number(draft.settings.get(name, default), 0), str(draft.settings.get(f"{name}_unit", unit))


def _interval(name: str) -> Rule:
    """Set when checkpoints are saved; backups and saves are the same here."""

    def handle(value: Any, draft: ImportDraft) -> Outcome:
        every, unit = _every(draft, name)
        if unit == "NEVER" or not every:
            return Fate.DEFAULT, "only at the end"
        steps = values.whole(draft.settings.get("gradient_accumulation_steps", 1))
        if unit == "STEP":
            return Fate.TAKEN, draft.set("checkpoints.every_steps", max(int(every) // steps, 1))
        if unit in _MINUTES:
            return Fate.TAKEN, draft.set("checkpoints.every_minutes", round(every * _MINUTES[unit], 4))
        if unit == "ALWAYS":
            return Fate.TAKEN, draft.set("checkpoints.every_steps", 1)
        remark = draft.set("checkpoints.at_epoch_end", True)
        return (Fate.TAKEN, remark) if every == 1 else (Fate.NOT_POSSIBLE, f"after each epoch: {remark}")

    return handle


def _previews(value: Any, draft: ImportDraft) -> Outcome:
    every, unit = _every(draft, "sample_after")
    steps = values.whole(draft.settings.get("gradient_accumulation_steps", 1))
    if unit in ("STEP", "ALWAYS") and every:
        taken = max(int(every) // steps, 1) if unit == "STEP" else 1
        return Fate.TAKEN, draft.set("samples.every_steps", taken)
    if unit == "NEVER" or not every:
        return Fate.DEFAULT, "only at the end"
    return Fate.NOT_POSSIBLE, "previews are made every so many steps: set samples.every_steps; until then, at the end"


def _rolling(value: Any, draft: ImportDraft) -> Outcome:
    if not values.flag(value):
        return Fate.NOT_POSSIBLE, "not all checkpoints stay: set checkpoints.keep_last, or keep_every"
    kept = values.whole(draft.settings.get("rolling_backup_count", 3))
    return Fate.TAKEN, draft.set("checkpoints.keep_last", kept)


def _output(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("output", f"{values.text(value).rstrip('/')}/{draft.request.path.stem}")


def _batch_size(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set("buckets.batch_size", values.whole(value, 1, 65536))


def _gpus(value: Any, draft: ImportDraft) -> Outcome:
    if not values.flag(value):
        return Fate.DEFAULT, "off"
    return Fate.NO_MEANING, "start as many processes with torchrun"


def _bucketed(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, "buckets.aspect_ratios"


def _resolution(value: Any, draft: ImportDraft) -> Outcome:
    objective.sides_of(str(value))
    return Fate.TAKEN, "[[bucket]]"


def _masks(value: Any, draft: ImportDraft) -> Outcome:
    if not values.flag(value):
        return Fate.DEFAULT, "off"
    return Fate.TO_FILL_IN, (
        "move each NAME-masklabel.png to a folder of masks as NAME.png, and name that folder as dataset.loss_mask"
    )


def _mask_setting(as_here: tuple[Any, ...], told: str) -> Rule:
    def handle(value: Any, draft: ImportDraft) -> Outcome:
        if draft.settings.get("masked_training") is not True:
            return Fate.NO_MEANING, "masks are not used"
        return rules.only(as_here, "as here", told)(value, draft)

    return handle


_EMBEDDINGS = rules.impossible("embeddings are not trained: write words into the captions")


RULES: dict[str, Rule] = {
    "__version": rules.without_meaning("the version of the file"),
    "training_method": _method,
    "model_type": _model_type,
    **dict.fromkeys(("debug_mode", "debug_dir", "continue_last_backup", "prevent_overwrites"), _WINDOW),
    "include_train_config": rules.without_meaning("exports name the recipe's base in their header"),
    "workspace_dir": _output,
    **dict.fromkeys(
        ("cache_dir", "clear_cache_before_training"), rules.without_meaning("stored latents are never stale")
    ),
    **dict.fromkeys(
        ("huggingface_cache_dir", "offline_mode"), rules.without_meaning("HF_HOME and HF_HUB_OFFLINE tell")
    ),
    **dict.fromkeys(
        ("tensorboard", "tensorboard_expose", "tensorboard_always_on", "tensorboard_port", "samples_to_tensorboard"),
        rules.without_meaning("TensorBoard is always written"),
    ),
    "validation": rules.impossible("clips are held out of the datasets: set validation.split"),
    **dict.fromkeys(
        ("validate_after", "validate_after_unit"),
        rules.without_meaning("validation.every_steps is for clips that are held out"),
    ),
    "multi_gpu": _gpus,
    **dict.fromkeys(
        (
            *("device_indexes", "gradient_reduce_precision", "fused_gradient_reduce", "async_gradient_reduce"),
            *("async_gradient_reduce_buffer", "train_device", "temp_device", "dataloader_threads"),
            *(
                "attention_mechanism",
                "enable_autocast_cache",
                "async_offloading",
                "weight_dtype",
                "fallback_train_dtype",
            ),
        ),
        _SPEED,
    ),
    "only_cache": rules.without_meaning("`reelworks encode` stores latents and embeddings alone"),
    "output_dtype": rules.by_name("exports.dtype", _EXPORTED, "bfloat16", "exports have no such dtype"),
    "output_model_destination": rules.without_meaning("exports are in the run folder"),
    "force_circular_padding": rules.impossible("pictures that join at their edges are not possible"),
    "compile": values.switch("train.compile"),
    **dict.fromkeys(("concept_file_name", "sample_definition_file_name"), rules.without_meaning("it is read too")),
    **dict.fromkeys(("concepts", "samples"), rules.without_meaning("there are none in it")),
    "aspect_ratio_bucketing": _bucketed,
    "latent_caching": _caching,
    "custom_learning_rate_scheduler": rules.impossible("set train.learning_rate_schedule"),
    **dict.fromkeys(("scheduler_params", "scheduler_params.*"), rules.impossible("set train.learning_rate_schedule")),
    "learning_rate_cycles": rules.only((1, 1.0), "one", "the rate falls once"),
    "learning_rate_min_factor": values.together("learning_rate_scheduler"),
    "epochs": values.passes,
    "batch_size": _batch_size,
    "gradient_accumulation_steps": values.count("train.gradient_accumulation_steps"),
    **dict.fromkeys(("ema_decay", "ema_update_step_interval"), values.together("ema")),
    "train_dtype": _dtype,
    "resolution": _resolution,
    "frames": rules.without_meaning("this model takes pictures"),
    "huber_delta": values.together("huber_strength"),
    "vb_loss_strength": rules.without_meaning("it belongs to other models"),
    "loss_weight_strength": values.together("loss_weight_fn"),
    "loss_scaler": rules.impossible("the loss is a mean: multiply train.learning_rate instead", unless=("NONE",)),
    "clip_grad_norm": values.amount("train.max_grad_norm", none=NONE),
    "layer_filter_regex": values.together("layer_filter"),
    "offset_noise_weight": rules.impossible("noise has no offset"),
    "generalized_offset_noise": rules.impossible("noise has no offset"),
    "perturbation_noise_weight": rules.impossible("noise is not perturbed"),
    "rescale_noise_scheduler_to_zero_terminal_snr": rules.impossible(
        "the noise of SDXL's last step is that of its release"
    ),
    "force_epsilon_prediction": rules.only((False,), "as the release", "the release decides: objective.name"),
    **dict.fromkeys(("noising_weight", "noising_bias"), values.together("timestep_distribution")),
    "quantization.*": rules.without_meaning("lora.base is for the linear layers of all blocks"),
    **{
        f"text_encoder{n}_layer_skip": rules.impossible("captions are encoded as the release does")
        for n in ("", "_2", "_3", "_4")
    },
    "masked_training": _masks,
    "unmasked_probability": _mask_setting((0, 0.0), "masks are always used"),
    "unmasked_weight": _mask_setting((0, 0.0), "black areas do not count: paint them grey"),
    "normalize_masked_area_loss": _mask_setting((False,), "the loss is a mean over all areas"),
    "masked_prior_preservation_weight": _mask_setting((0, 0.0), "use a dataset with prior_prediction"),
    "custom_conditioning_image": rules.impossible(
        "move each NAME-condlabel.png to a folder, and name it as dataset.control"
    ),
    **dict.fromkeys(("additional_embeddings", "additional_embeddings.*"), _EMBEDDINGS),
    "lora_model_name": values.place("lora.weights"),
    "lora_decompose_norm_epsilon": rules.without_meaning("norms have no epsilon"),
    "lora_decompose_output_axis": values.together("lora_decompose"),
    "lora_weight_dtype": rules.only(("FLOAT_32",), "as here", "adapters are trained in float32"),
    "lokr_use_tucker": rules.without_meaning("it is for convolutions"),
    "lokr_dora_on_output": values.together("lokr_weight_decompose"),
    "lokr_vec_trick": _SPEED,
    "optimizer.__version": rules.without_meaning("the version of the table"),
    **{
        f"optimizer.{key}": _SPEED
        for key in (
            *("foreach", "fused", "capturable", "compile", "use_triton", "is_paged", "optim_bits", "min_8bit_size"),
            *("quant_block_size", "percentile_clipping", "block_wise", "log_every", "differentiable", "slice_p"),
            *("stochastic_rounding", "fsdp_in_use", "factored_fp32", "split_groups", "split_groups_mean"),
        )
    },
    **{
        f"optimizer.{key}": rules.without_meaning("it belongs to optimizers that are not here, or has its default")
        for key in (
            *("muon_adam_config", "muon_adam_config.*", "muon_hidden_layers", "muon_adam_regex", "muon_adam_lr"),
            *("muon_te1_adam_lr", "muon_te2_adam_lr", "MuonWithAuxAdam", "decouple", "d_limiter", "use_schedulefree"),
            *("use_stableadamw", "factored", "weight_decay_by_lr", "bias_correction", "adam_w_mode", "rms_rescaling"),
            *("beta3", "beta3_ema", "alpha", "alpha_grad", "d0", "growth_rate", "decay_rate", "clip_threshold"),
            *(
                "eps2",
                "momentum",
                "dampening",
                "lr_decay",
                "initial_accumulator_value",
                "initial_accumulator",
                "k",
                "xi",
            ),
            *("max_unorm", "r", "weight_lr_power", "n_sma_threshold", "ns_steps", "beta2_normuon", "ortho_rank"),
            *("beta1_warmup", "min_beta1", "schedulefree_c", "prodigy_steps", "nesterov", "relative_step"),
            *("scale_parameter", "warmup_init"),
        )
    },
    "optimizer.d_coef": rules.impossible(
        "the estimate is not scaled: multiply train.learning_rate", unless=(None, 1, 1.0)
    ),
    "sample_after": _previews,
    "sample_after_unit": values.together("sample_after"),
    **dict.fromkeys(
        ("sample_skip_first", "sample_image_format", "sample_video_format", "sample_audio_format"),
        rules.without_meaning("previews are files of the run folder"),
    ),
    "non_ema_sampling": rules.without_meaning("previews are made with the averaged weights"),
    "backup_after": _interval("backup_after"),
    "backup_after_unit": values.together("backup_after"),
    "rolling_backup": _rolling,
    "rolling_backup_count": values.together("rolling_backup"),
    "backup_before_save": rules.without_meaning("a run saves at its end"),
    "save_every": _interval("save_every"),
    "save_every_unit": values.together("save_every"),
    "save_skip_first": rules.impossible("the first are written too", unless=(0, None)),
    "save_filename_prefix": rules.without_meaning("exports are named by their step"),
    **dict.fromkeys(("secrets.*", "cloud.*"), rules.without_meaning("`reelworks train` runs where it is started")),
    **parts.RULES,
    **objective.RULES,
    **adapter.RULES,
    **rates.RULES,
}
