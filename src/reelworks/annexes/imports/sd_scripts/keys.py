"""Rules of sd-scripts' settings: its argument parsers of version 0.10 and its dataset config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.kohya import adapters, datasets, timesteps, training
from reelworks.annexes.imports.kohya.training import impossible
from reelworks.annexes.imports.kohya.values import count, is_on, number, number_of, switch, text
from reelworks.annexes.imports.rules import Fate, Outcome, Rule

_SPEED = "it affects speed or memory only"
_TEXT = "text encoders keep their weights: only the denoiser is trained"
_NOISE = "noise is drawn as the model was trained with it"
_PARTS = "the text encoders and the autoencoder of the release are used: text_encoder.weights, autoencoder.weights"
_TAGS = "tags are shuffled and dropped by shuffle_tags, tag_dropout and keep_tags alone"
_MODEL = "model.name and lora.type have it"
_SIZES = "sizes follow from bucket.resolution and buckets.aspect_ratios"
_DIFFUSION = ("sdxl",)
# Defaults of flow matching by model, where they differ: density, shift, kind of prediction.
SAMPLING = {"flux": ("sigma", 3.0), "chroma": ("sigma", 3.0), "sd3": ("sigma", 1.0)}
_SDXL_LAYERS = ("to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out")
_HUBER = {"huber": "huber", "smooth_l1": "smooth-l1"}


def family_of(draft: ImportDraft) -> str:
    """Return the beginning of the preset's name: sdxl, flux, sd3 or chroma."""
    preset = str(draft.get("model.name", ""))
    return next((name for name in ("sdxl", "sd3", "flux", "chroma") if preset.startswith(name)), preset)


def targets_of(draft: ImportDraft) -> tuple[Any, str]:
    """Return the layers of the trained network of the scripts' own modules, and why: of SDXL those of its attentions' blocks."""
    if family_of(draft) in _DIFFUSION:
        return list(_SDXL_LAYERS), "linear layers of Transformer2DModel"
    return "blocks", "linear layers of all blocks"


def _is_flow(draft: ImportDraft) -> bool:
    return family_of(draft) not in _DIFFUSION


def _sampling(value: Any, draft: ImportDraft) -> Outcome:
    if not _is_flow(draft):
        return Fate.NO_MEANING, "SDXL draws all timesteps alike"
    if family_of(draft) == "sd3":
        return Fate.NO_MEANING, "SD3 has no such setting: weighting_scheme and training_shift decide"
    _, shift = SAMPLING.get(family_of(draft), ("sigma", 3.0))
    return timesteps.sampling(value, draft, default_shift=shift)


def _weighting(value: Any, draft: ImportDraft) -> Outcome:
    if not _is_flow(draft):
        return Fate.NO_MEANING, "only flow matching has it"
    if family_of(draft) == "sd3":
        return _sd3_density(value, draft)
    weighs = draft.settings.get("model_prediction_type", "sigma_scaled") == "sigma_scaled"
    return timesteps.weighting(value, draft, weighs=weighs)


def _sd3_density(value: Any, draft: ImportDraft) -> Outcome:
    """Convert SD3's density, in which the drawn number is the timestep itself."""
    get = draft.settings.get
    shift = number_of(get("training_shift", 1.0))
    parts = {"logit_normal": "logit-normal", "mode": "mode"}
    told = [draft.set("objective.timestep_sampling", parts.get(str(value), "uniform"))]
    if value == "logit_normal":
        told.append(draft.set("objective.logit_mean", number_of(get("logit_mean", 0.0))))
        told.append(draft.set("objective.logit_std", number_of(get("logit_std", 1.0))))
    if value == "mode":
        told.append(draft.set("objective.mode_scale", number_of(get("mode_scale", 1.29))))
    told.append(draft.set("objective.timestep_shift", None if shift == 1 or shift <= 0 else shift))
    _, weight = timesteps.weighting(value, draft)
    return Fate.TAKEN, ", ".join([*told, *([weight] if value in ("sigma_sqrt", "cosmap") else [])])


def _bound(value: Any, draft: ImportDraft) -> Outcome:
    if value in (None, ""):
        return Fate.DEFAULT, "not set"
    if not _is_flow(draft):
        return Fate.NOT_POSSIBLE, "SDXL is trained at all timesteps"
    default = "uniform" if family_of(draft) == "sd3" else "sigma"
    return timesteps.bound(value, draft, default_sampling=default)


def _of_flow(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.NO_MEANING, "the density of timesteps has it" if _is_flow(draft) else "only flow matching has it"


def _prediction(value: Any, draft: ImportDraft) -> Outcome:
    if not _is_flow(draft) or family_of(draft) == "sd3":
        return Fate.NO_MEANING, "this model has no such setting"
    if value == "raw":
        return Fate.DEFAULT, "the network predicts the velocity"
    return Fate.NOT_POSSIBLE, "the network predicts the velocity, as it was trained to (raw there)"


def _velocity(value: Any, draft: ImportDraft) -> Outcome:
    if not is_on(value):
        return Fate.DEFAULT, "off"
    if _is_flow(draft):
        return Fate.NO_MEANING, "only SDXL has it"
    return Fate.TAKEN, draft.set("objective.name", "v-prediction")


def _guidance(value: Any, draft: ImportDraft) -> Outcome:
    if family_of(draft) != "flux" or number_of(value) == 1:
        return Fate.DEFAULT, "guidance is 1 in training"
    return Fate.NOT_POSSIBLE, "the guidance that the network is told is 1 in training"


def _loss(value: Any, draft: ImportDraft) -> Outcome:
    if value in (None, "l2"):
        return Fate.DEFAULT, "the squared error"
    if value == "l1":
        draft.set("objective.huber_delta", 0.001)
        return Fate.NOT_POSSIBLE, f"{draft.set('objective.loss', 'smooth-l1')} with a small delta replaces it"
    if value not in _HUBER:
        return Fate.NOT_POSSIBLE, "this distance is not there; the squared error replaces it"
    return (
        Fate.TAKEN,
        f"{draft.set('objective.loss', _HUBER[value])}; there the bend is smooth, and the loss twice as large",
    )


def _huber(value: Any, draft: ImportDraft) -> Outcome:
    if draft.settings.get("loss_type") not in _HUBER:
        return Fate.NO_MEANING, "loss_type decides"
    if draft.key == "huber_c":
        return number("objective.huber_delta", 0, 10, above=True)(value, draft)
    if draft.key == "huber_scale":
        return rules.only((1, 1.0, None), "no further scale", "objective.huber_delta has no further scale")(
            value, draft
        )
    if value in ("constant", "exponential"):
        return Fate.TAKEN, draft.set("objective.huber_schedule", value)
    return Fate.NOT_POSSIBLE, f"{draft.set('objective.huber_schedule', 'exponential')} replaces it"


def _min_snr(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        return Fate.DEFAULT, "off"
    if _is_flow(draft):
        return Fate.NO_MEANING, "only SDXL has it there"
    copied = number("objective.snr_gamma", above=True)(value, draft)
    if copied[0] is not Fate.TAKEN:
        return copied
    return Fate.TAKEN, f"{draft.set('objective.loss_weighting', 'min-snr')}, {copied[1]}"


def _debiased(value: Any, draft: ImportDraft) -> Outcome:
    if not is_on(value):
        return Fate.DEFAULT, "off"
    if _is_flow(draft):
        return Fate.NO_MEANING, "only SDXL has it there"
    if draft.settings.get("min_snr_gamma"):
        return Fate.NOT_POSSIBLE, "one weight of a timestep's loss is there: min_snr_gamma is taken"
    return Fate.TAKEN, draft.set("objective.loss_weighting", "debiased")


def draws_captions(draft: ImportDraft) -> bool:
    """Whether captions or pictures differ at each use, which stored ones do not."""
    keys = ("shuffle_tags", "tag_dropout")
    numbers = range(draft.count("dataset"))
    return draft.get("data.crop") == "random" or any(draft.get(f"dataset.{n}.{key}") for n in numbers for key in keys)


def _store(value: Any, draft: ImportDraft) -> Outcome:
    if not is_on(value):
        return Fate.DEFAULT, "off"
    if draws_captions(draft):
        return (
            Fate.NOT_POSSIBLE,
            "captions or crops are drawn at each use: encode.store with encode.variants stores several of each",
        )
    return Fate.TAKEN, draft.set("encode.store", True)


def _autoencoder(value: Any, draft: ImportDraft) -> Outcome:
    is_hub_id = isinstance(value, str) and value.count("/") == 1 and not value.startswith((".", "/", "~", "<"))
    if is_hub_id and "." not in value.rpartition("/")[2][-13:]:
        return Fate.TAKEN, draft.set("autoencoder.weights", value)
    return Fate.NO_MEANING, _PARTS


def _text_encoders(value: Any, draft: ImportDraft) -> Outcome:
    return (Fate.DEFAULT, "text encoders keep their weights") if is_on(value) else (Fate.NOT_POSSIBLE, _TEXT)


def _tokens(value: Any, draft: ImportDraft) -> Outcome:
    if value in (None, 75, 77):
        return Fate.DEFAULT, "captions have up to 77 tokens"
    if _is_flow(draft):
        return Fate.NO_MEANING, "T5 has a length of its own"
    return Fate.NOT_POSSIBLE, "captions are cut after 77 tokens, the length of SDXL's encoders"


def _masks(value: Any, draft: ImportDraft) -> Outcome:
    if is_on(value) and not any(draft.get(f"dataset.{n}.loss_mask") for n in range(draft.count("dataset"))):
        return Fate.TO_FILL_IN, "masks are pictures in a folder: set dataset.loss_mask"
    return (Fate.TAKEN, "dataset.loss_mask") if is_on(value) else (Fate.DEFAULT, "off")


_IMPOSSIBLE_NOISE = (
    *("noise_offset", "noise_offset_random_strength", "multires_noise_iterations", "multires_noise_discount"),
    *("adaptive_noise_scale", "ip_noise_gamma", "ip_noise_gamma_random_strength", "zero_terminal_snr"),
)
_TEXT_TRAINING = (
    *("text_encoder_lr", "text_encoder_lr1", "text_encoder_lr2", "text_encoder_lr3", "train_text_encoder"),
    *("train_t5xxl", "learning_rate_te", "learning_rate_te1", "learning_rate_te2", "learning_rate_te3"),
    *("network_train_text_encoder_only", "stop_text_encoder_training", "save_clip", "save_t5xxl"),
    *("clip_l_dropout_rate", "clip_g_dropout_rate", "t5_dropout_rate"),
)
_SPEED_ONLY = (
    *("lowram", "highvram", "vae_batch_size", "skip_cache_check", "text_encoder_batch_size", "diffusers_xformers"),
    *("fused_optimizer_groups", "blockwise_fused_optimizers", "skip_latents_validity_check", "single_blocks_to_swap"),
    *("double_blocks_to_swap", "split_mode", "t5xxl_device", "t5xxl_dtype", "use_t5xxl_cache_only", "no_half_vae"),
    *("unsloth_offload_checkpointing", "tokenizer_cache_dir", "console_log_level", "console_log_file"),
    *("console_log_simple", "debug_dataset", "use_safetensors", "v2", "deepspeed", "zero_stage", "zero3_init_flag"),
    *("offload_optimizer_device", "offload_optimizer_nvme_path", "offload_param_device", "offload_param_nvme_path"),
    *(
        "zero3_save_16bit_model",
        "fp16_master_weights_and_gradients",
        "vae_chunk_size",
        "output_config",
        "optimizer_schedulefree_wrapper",
    ),
)

RULES: Mapping[str, Rule] = {
    **training.RULES,
    **adapters.RULES,
    "accelerate.mixed_precision": rules.without_meaning("mixed_precision decides, which is no if it is left out"),
    "model_type": rules.only((None, "flux", "chroma"), "model.name has it", "this kind of model is not known"),
    "model_train_type": rules.without_meaning("model.name has it"),
    "unet_lr": lambda value, draft: (
        (Fate.DEFAULT, "learning_rate decides") if value is None else training.RULES["learning_rate"](value, draft)
    ),
    "network_train_unet_only": _text_encoders,
    "fp8_base_unet": training.float8,
    "block_lr": impossible("all layers have one rate: train.learning_rate"),
    "v_parameterization": _velocity,
    "scale_v_pred_loss_like_noise_pred": impossible("objective.loss_weighting has other weights"),
    "v_pred_like_loss": impossible("objective.loss_weighting has other weights"),
    "min_snr_gamma": _min_snr,
    "debiased_estimation_loss": _debiased,
    "loss_type": _loss,
    "huber_schedule": _huber,
    "huber_c": _huber,
    "huber_scale": _huber,
    **dict.fromkeys(_IMPOSSIBLE_NOISE, impossible(_NOISE)),
    "weighted_captions": impossible("brackets in captions have no weight"),
    "prior_loss_weight": rules.only(
        (None, 1, 1.0),
        "all clips have one weight",
        "clips have one weight: set dataset.repeats, or dataset.prior_prediction",
    ),
    "timestep_sampling": _sampling,
    "weighting_scheme": _weighting,
    "discrete_flow_shift": _of_flow,
    "sigmoid_scale": _of_flow,
    "logit_mean": _of_flow,
    "logit_std": _of_flow,
    "mode_scale": _of_flow,
    "training_shift": _of_flow,
    "min_timestep": _bound,
    "max_timestep": _bound,
    "model_prediction_type": _prediction,
    "guidance_scale": _guidance,
    "apply_t5_attn_mask": rules.without_meaning("padding of captions is treated as the release does"),
    "apply_lg_attn_mask": rules.without_meaning("padding of captions is treated as the release does"),
    "t5xxl_max_token_length": rules.without_meaning("text_encoder.max_length is that of the release"),
    "pos_emb_random_crop_rate": impossible("positions are those of the release"),
    "enable_scaled_pos_embed": impossible("positions are those of the release"),
    "num_last_block_to_freeze": impossible("all blocks are trained: a LoRA's lora.targets names layers"),
    "max_token_length": _tokens,
    "clip_skip": impossible("text encoders give the layer that the release uses"),
    **dict.fromkeys(_TEXT_TRAINING, impossible(_TEXT)),
    **dict.fromkeys(_SPEED_ONLY, rules.without_meaning(_SPEED)),
    **dict.fromkeys(
        ("clip_l", "clip_g", "t5xxl", "ae", "text_encoder", "byt5", "qwen3", "gemma2"), rules.without_meaning(_PARTS)
    ),
    "vae": _autoencoder,
    **dict.fromkeys(
        ("cache_latents", "cache_latents_to_disk", "cache_text_encoder_outputs", "cache_text_encoder_outputs_to_disk"),
        _store,
    ),
    "masked_loss": _masks,
    "save_n_epoch_ratio": impossible("saves are counted in steps or epochs: checkpoints.every_steps"),
    "initial_epoch": impossible("the same command resumes"),
    "initial_step": impossible("the same command resumes"),
    "skip_until_initial_step": rules.without_meaning("a resume finds its place"),
    "validate_every_n_steps": count("validation.every_steps"),
    "validate_every_n_epochs": impossible("validations are counted in steps: validation.every_steps"),
    "max_validation_steps": impossible("validation.max_clips limits validation"),
    "caption_extention": impossible("caption files end in .txt or .caption"),
    "in_json": rules.without_meaning("the dataset has it"),
    "train_data_dir": rules.without_meaning("the dataset config has the folders"),
    "reg_data_dir": rules.without_meaning("the dataset config has the folders"),
    "dataset_class": impossible("datasets are folders or lists"),
    "controlnet_model_name_or_path": impossible("a ControlNet cannot be trained here"),
    "datasets": lambda value, draft: (Fate.TO_FILL_IN, "there is no dataset in it: set dataset.path"),
    "general": rules.without_meaning("there is no setting in it"),
    # Of lora-scripts and other pages around sd-scripts.
    **dict.fromkeys(
        ("LoRA_type", "sdxl", "flux1_checkbox", "sd3_checkbox", "model_list"), rules.without_meaning(_MODEL)
    ),
    **dict.fromkeys(
        ("num_cpu_threads_per_process", "num_processes", "num_machines", "multi_gpu", "main_process_port"),
        rules.without_meaning("torchrun starts the processes"),
    ),
    "additional_parameters": impossible("give these arguments with --command"),
    "extra_accelerate_launch_args": rules.without_meaning("torchrun starts the processes"),
    **dict.fromkeys(
        ("gpu_ids", "enable_preview", "sample_cfg", "sample_seed", "sample_steps", "sample_width", "sample_height"),
        rules.without_meaning("of the page around sd-scripts"),
    ),
    **dict.fromkeys(
        ("positive_prompts", "negative_prompts", "randomly_choice_prompt", "ui_custom_params", "prompt_file"),
        impossible("set samples.prompts"),
    ),
    **dict.fromkeys(
        ("sample_scheduler", "enable_base_weight", "enable_block_weights", "async_upload", "network_option"),
        rules.without_meaning("of the page around sd-scripts"),
    ),
}

# Of the arguments; those of datasets are in DATASET_DEFAULTS. `timestep_sampling` and others depend on the model.
DEFAULTS: Mapping[str, Any] = {**training.DEFAULTS, "mixed_precision": "no"}
OF_ADAPTERS: Mapping[str, Any] = {"network_dim": None, "network_alpha": 1, "network_train_unet_only": False}
OF_FLOW: Mapping[str, Any] = {
    "timestep_sampling": "sigma",
    "model_prediction_type": "sigma_scaled",
    "guidance_scale": 3.5,
}
OF_SD3: Mapping[str, Any] = {"weighting_scheme": "uniform"}


def _class_tokens(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, draft.set(rules.numbered("dataset.*.missing_caption", draft), str(value))


def _metadata(value: Any, draft: ImportDraft) -> Outcome:
    if str(value).lower().endswith(".jsonl"):
        return datasets.path(value, draft)
    return (
        Fate.NOT_POSSIBLE,
        "captions are read from text files beside the pictures, or from a .csv, .parquet or .jsonl",
    )


def _prefix(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, _template(draft, "{} {text}", value)


def _suffix(value: Any, draft: ImportDraft) -> Outcome:
    return Fate.TAKEN, _template(draft, "{text} {}", value)


def _template(draft: ImportDraft, form: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    key = rules.numbered("dataset.*.caption", draft)
    own = value.replace("{", "{{").replace("}", "}}")
    return draft.set(key, form.replace("{}", own).replace("{text}", str(draft.get(key, "{text}"))))


def _wildcard(value: Any, draft: ImportDraft) -> Outcome:
    if not is_on(value):
        return (
            Fate.TAKEN,
            f"{draft.set(rules.numbered('dataset.*.captions', draft), 'first')}: the other lines are not read",
        )
    remark = draft.set(rules.numbered("dataset.*.captions", draft), "lines")
    return Fate.TAKEN, f"{remark}: each use draws a line; choices in a line, as in {{a|b}}, are not there"


def _random_crop(value: Any, draft: ImportDraft) -> Outcome:
    return (Fate.TAKEN, draft.set("data.crop", "random")) if is_on(value) else (Fate.DEFAULT, "off")


def _interpolation(value: Any, draft: ImportDraft) -> Outcome:
    known = {"lanczos": "lanczos", "area": "area", "bicubic": "bicubic", "cubic": "bicubic", "box": "area"}
    return rules.by_name("data.resize", known, "bicubic", "this filter is not there")(value, draft)


def _validation(value: Any, draft: ImportDraft) -> Outcome:
    share = number_of(value)
    if share == 0:
        return Fate.DEFAULT, "no validation"
    if not 0 < share < 1:
        return (
            Fate.NOT_POSSIBLE,
            "a folder for validation alone is not there: validation.split holds back a share of all",
        )
    return Fate.TAKEN, f"{draft.set('validation.split', share)}, of all datasets"


def _conditioning(value: Any, draft: ImportDraft) -> Outcome:
    if is_on(draft.settings.get("masked_loss")):
        return Fate.TAKEN, draft.set(rules.numbered("dataset.*.loss_mask", draft), str(value))
    return Fate.NOT_POSSIBLE, "a ControlNet cannot be trained here; with masked_loss, it is dataset.loss_mask"


def _keep_tokens(value: Any, draft: ImportDraft) -> Outcome:
    return number("dataset.*.keep_tags", 0, 10_000, whole=True)(value, draft)


def _separator(value: Any, draft: ImportDraft) -> Outcome:
    if value == ",":
        return Fate.DEFAULT, "a comma"
    return text("dataset.*.tag_separator")(value, draft)


def _wanted(value: Any, draft: ImportDraft) -> Outcome:
    if not is_on(value):
        return Fate.DEFAULT, "off"
    return Fate.NOT_POSSIBLE, "write the alpha channels as pictures to a folder: dataset.loss_mask"


DATASETS: Mapping[str, Rule] = {
    "metadata_file": _metadata,
    "in_json": _metadata,
    "image_dir": lambda value, draft: (
        (Fate.TAKEN, draft.set(rules.numbered("dataset.*.root", draft), str(value)))
        if draft.get(rules.numbered("dataset.*.path", draft)) is not None
        else datasets.path(value, draft)
    ),
    "class_tokens": _class_tokens,
    "num_repeats": datasets.repeats,
    "caption_extension": datasets.caption_extension,
    "shuffle_caption": switch("dataset.*.shuffle_tags"),
    "caption_separator": _separator,
    "keep_tokens": _keep_tokens,
    "keep_tokens_separator": impossible("keep_tags counts the tags that stay in place"),
    "secondary_separator": impossible(_TAGS),
    "enable_wildcard": _wildcard,
    "color_aug": impossible("dataset.jitter_brightness, jitter_contrast, jitter_saturation and jitter_hue are there"),
    "flip_aug": switch("dataset.*.flip", 0.5),
    "face_crop_aug_range": impossible('data.crop = "random" is there; faces are not looked for'),
    "random_crop": _random_crop,
    "caption_prefix": _prefix,
    "caption_suffix": _suffix,
    "caption_dropout_rate": datasets.caption_dropout,
    "caption_dropout_every_n_epochs": impossible("objective.caption_dropout is a share of all uses"),
    "caption_tag_dropout_rate": number("dataset.*.tag_dropout", 0, 1),
    "token_warmup_min": rules.without_meaning("token_warmup_step decides"),
    "token_warmup_step": impossible(_TAGS),
    "custom_attributes": rules.without_meaning("notes of a dataset"),
    "validation_split": _validation,
    "validation_seed": rules.without_meaning("the seed decides what is held out"),
    "resize_interpolation": _interpolation,
    "interpolation_type": _interpolation,
    "is_reg": lambda value, draft: (
        (Fate.TAKEN, "repeated as often in all as the other pictures: dataset.repeats")
        if is_on(value)
        else (Fate.DEFAULT, "off")
    ),
    "alpha_mask": _wanted,
    "cache_info": rules.without_meaning("the catalog keeps sizes"),
    "conditioning_data_dir": _conditioning,
    "network_multiplier": rules.only((None, 1, 1.0), "as trained", "a dataset has no multiplier"),
    **dict.fromkeys(("min_bucket_reso", "max_bucket_reso", "bucket_reso_steps"), rules.without_meaning(_SIZES)),
}
SIZES = ("resolution", "batch_size", "enable_bucket", "bucket_no_upscale")
DATASET_DEFAULTS: Mapping[str, Any] = {"caption_dropout_rate": 0.0, "class_tokens": "", "enable_wildcard": False}
ALSO = {"batch_size": "train_batch_size", "num_repeats": "dataset_repeats"}
